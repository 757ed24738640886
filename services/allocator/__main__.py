"""``turnbuckle run allocator``, or ``python -m services.allocator``."""

from services._runtime.service.app import main
from services.allocator.service import Allocator

if __name__ == "__main__":
    main(Allocator)
