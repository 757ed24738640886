"""The seeded photographs of the media pipeline and the functions: painted at the start by a container of its own."""

from __future__ import annotations

from tests.bench.escra.apps.application import SERVICES_DIRECTORY, Container, Site

SIZES = ((640, 480), (800, 600), (960, 720), (1024, 768))
"""Pixels of image number n: the sizes take turns, as services/pictures.py has them."""
_DEADLINE_S = 30.0


def size(image: int) -> tuple[int, int]:
    """Width and height of an image in pixels."""
    return SIZES[image % len(SIZES)]


async def paint(site: Site, count: int) -> None:
    """Put the images 0 to count - 1 into the Redis server `store`.

    In a container that is gone afterwards, so that the memory of painting is charged to none that is measured.

    Raises:
        RuntimeError: it did not end well.
    """
    painter = Container("painter", ("python3", f"{SERVICES_DIRECTORY}/pictures.py", "store", str(count)))
    endings = await site.run_to_end((painter,), _DEADLINE_S)
    if endings["painter"].exit_code != 0:
        raise RuntimeError(f"painting the images ended with {endings['painter']}")
