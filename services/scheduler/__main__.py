"""``turnbuckle run scheduler``, or ``python -m services.scheduler``."""

from services._runtime.service.app import main
from services.scheduler.service import Scheduler

if __name__ == "__main__":
    main(Scheduler)
