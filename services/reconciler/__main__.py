"""``turnbuckle run reconciler``, or ``python -m services.reconciler``."""

from services._runtime.service.app import main
from services.reconciler.service import Reconciler

if __name__ == "__main__":
    main(Reconciler)
