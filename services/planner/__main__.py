"""``turnbuckle run planner``, or ``python -m services.planner``."""

from services._runtime.service.app import main
from services.planner.service import Planner

if __name__ == "__main__":
    main(Planner)
