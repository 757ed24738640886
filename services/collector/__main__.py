"""``turnbuckle run collector``, or ``python -m services.collector``."""

from services._runtime.service.app import main
from services.collector.service import Collector

if __name__ == "__main__":
    main(Collector)
