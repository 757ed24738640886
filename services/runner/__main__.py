"""``turnbuckle run runner``, or ``python -m services.runner``."""

from services._runtime.service.app import main
from services.runner.service import Runner

if __name__ == "__main__":
    main(Runner)
