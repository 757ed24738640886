"""``turnbuckle run fastpath``, or ``python -m services.reconciler.fastpath``."""

from services._runtime.service.app import main
from services.reconciler.fastpath.service import FastPath

if __name__ == "__main__":
    main(FastPath)
