"""``turnbuckle run advisor``, or ``python -m services.advisor``."""

from services._runtime.service.app import main
from services.advisor.service import Advisor

if __name__ == "__main__":
    main(Advisor)
