"""``python -m services.allocator``."""

from services._runtime.app import main
from services.allocator.service import Allocator

main(Allocator)
