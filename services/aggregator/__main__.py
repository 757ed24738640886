"""``turnbuckle run aggregator``, or ``python -m services.aggregator``."""

from services._runtime.service.app import main
from services.aggregator.service import AggregatorService

if __name__ == "__main__":
    main(AggregatorService)
