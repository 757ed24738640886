"""``turnbuckle run fastpath``, or ``python -m services.fastpath``."""

from services._runtime.service.app import main
from services.fastpath.service import FastPath

if __name__ == "__main__":
    main(FastPath)
