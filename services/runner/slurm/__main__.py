"""``turnbuckle run slurm``, or ``python -m services.runner.slurm``."""

from services._runtime.service.app import main
from services.runner.slurm.service import SlurmRunner

if __name__ == "__main__":
    main(SlurmRunner)
