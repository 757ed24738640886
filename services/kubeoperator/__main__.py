"""``turnbuckle run kubeoperator``, or ``python -m services.kubeoperator``."""

import sys

from services._runtime.exit_code import ExitCode
from services._runtime.install_hint import package_missing
from services._runtime.service.app import main

if __name__ == "__main__":
    try:
        from services.kubeoperator.service import Kubeoperator
    except ModuleNotFoundError as error:
        sys.stderr.write(f"turnbuckle run kubeoperator: {package_missing(error.name or 'kopf', 'kubeoperator')}\n")
        sys.exit(ExitCode.UNAVAILABLE)
    main(Kubeoperator)
