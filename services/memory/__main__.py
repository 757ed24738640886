"""``turnbuckle run memory``, or ``python -m services.memory``."""

from services._runtime.service.app import main
from services.memory.service import MemoryService

if __name__ == "__main__":
    main(MemoryService)
