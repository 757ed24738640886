"""``turnbuckle run agent``, or ``python -m services.agent``."""

from services._runtime.service.app import main
from services.agent.service import Agent

if __name__ == "__main__":
    main(Agent)
