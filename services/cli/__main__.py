"""``python -m services.cli`` is the same as ``turnbuckle``."""

from services.cli.main import main

main()
