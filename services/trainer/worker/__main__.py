"""``turnbuckle run trainer-worker``, or ``python -m services.trainer.worker``; torchrun starts one per device."""

import sys

from services._jobs.malloc_tunables import restart_with_tunables
from services.trainer.worker.command import end, main

if __name__ == "__main__":
    restart_with_tunables()
    end(main(sys.argv[1:]))
