"""``turnbuckle run kubeoperator``, or ``python -m services.kubeoperator``."""

from services._runtime.service.app import main
from services.kubeoperator.service import Kubeoperator

if __name__ == "__main__":
    main(Kubeoperator)
