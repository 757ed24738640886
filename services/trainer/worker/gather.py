"""Collectives over parts of different sizes, by what c10d has for gloo and NCCL alike.

gloo's own `all_gather` fails on different sizes, and torch cuts DTensors evenly: so a vector is gathered by one
broadcast per owner. That is also the cheapest where parts are alike: gloo's broadcast works in place, its `all_gather`
copies all of them twice, for three times the processor time. `reduce_scatter` takes lists of different sizes on both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

T = TypeVar("T")


class RankFailedError(Exception):
    """Another rank has ended, or does not answer: this one cannot go on. Started again, the job can."""


@contextmanager
def rank_failures() -> Iterator[None]:
    """What c10d raises where another rank fails is raised as `RankFailedError`; other errors stay what they are."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip().partition("\n")[0].partition(" This is typically")[0].rstrip(".")
        if not isinstance(error, dist.DistError) and "gloo" not in text:  # gloo's have no type, but name its source
            raise
        raise RankFailedError(text) from error


@dataclass(frozen=True, slots=True)
class Group:
    """Some of the job's ranks, which hold a vector among them."""

    ranks: tuple[int, ...]
    """Ascending."""
    process_group: dist.ProcessGroup | None
    """None: it is one rank, which needs no collectives."""


def new_groups(groups: Sequence[Sequence[int]], timeout: timedelta | None) -> list[Group]:
    """Groups of the job's ranks. A collective of all ranks, also of those that are in none.

    Args:
        groups: ranks of each.
        timeout: of their collectives; None: c10d's own.

    Raises:
        RankFailedError: another rank fails meanwhile.
    """
    with rank_failures():
        return [
            Group(tuple(sorted(ranks)), dist.new_group(sorted(ranks), timeout) if len(ranks) > 1 else None)
            for ranks in groups
        ]


@dataclass(frozen=True, slots=True)
class Begun:
    """A collective that goes on while this rank computes. All ranks begin those of a group in the same order."""

    result: Tensor
    """Complete after `wait` only."""
    works: tuple[dist.Work, ...] = ()
    copied: torch.Event | None = None
    """Of a GPU's stream on which the result's memory was filled and belongs to; None: the stream that computes."""

    def wait(self) -> Tensor:
        """The result.

        Raises:
            RankFailedError: another rank has failed.
        """
        with rank_failures():
            for work in self.works:
                work.wait()
        if self.copied is not None:
            computing = torch.cuda.current_stream(self.result.device)
            self.copied.wait(computing)
            self.result.record_stream(computing)
        return self.result


def gather(part: Tensor, sizes: Sequence[int], group: Group | None = None) -> Tensor:
    """The whole vector out of each rank's part: `begin_gather`, waited for.

    Raises:
        RankFailedError: another rank fails meanwhile.
    """
    return begin_gather(part, sizes, group).wait()


def begin_gather(part: Tensor, sizes: Sequence[int], group: Group | None = None) -> Begun:
    """Gather the whole vector out of each rank's part; does not wait for other ranks.

    Args:
        part: this rank's, one-dimensional; with one rank the result shares its memory.
        sizes: elements of each rank's part, by rank; none has to have any.
        group: of ranks that have all of it; None: all ranks take part.

    Raises:
        RankFailedError: another rank has failed.
    """
    if _is_alone(sizes, group) or not sum(sizes):
        return Begun(part.detach())
    whole = part.new_empty(sum(sizes))
    with rank_failures():
        works = gather_by_owner(part, torch.split(whole, list(sizes)), None if group is None else group.process_group)
    return Begun(whole, works)


def begin_reduce_scatter(whole: Tensor, sizes: Sequence[int], part: Tensor, group: Group | None = None) -> Begun:
    """This rank's part of the sum of all ranks' vectors, or of the group's, into ``part``, of its type; does not wait.

    c10d keeps what it still needs of ``whole`` (gloo copies it at once): the caller may let go of it.

    Raises:
        RankFailedError: another rank has failed.
    """
    if _is_alone(sizes, group) or not sum(sizes):
        return Begun(part.copy_(whole))
    parts, process_group = list(torch.split(whole.to(part.dtype), list(sizes))), None
    if group is not None:
        parts, process_group = [parts[rank] for rank in group.ranks], group.process_group
    with rank_failures():
        work = dist.reduce_scatter(part, parts, group=process_group, async_op=True)
    return Begun(part, (work,))


def _is_alone(sizes: Sequence[int], group: Group | None) -> bool:
    """Whether this rank has all of a vector, so that nothing is sent."""
    return len(sizes if group is None else group.ranks) == 1


def gather_by_owner(
    part: Tensor, parts: Sequence[Tensor], process_group: dist.ProcessGroup | None
) -> tuple[dist.Work, ...]:
    """Begin to fill each part by a broadcast of the rank in its place; ``part`` is this rank's."""
    parts[dist.get_rank()].copy_(part)
    return tuple(
        dist.broadcast(each, owner, process_group, async_op=True) for owner, each in enumerate(parts) if each.numel()
    )


def broadcast_tensor(tensor: Tensor) -> Tensor:
    """Fill the tensor with that of rank 0.

    Raises:
        RankFailedError: another rank fails meanwhile.
    """
    if tensor.numel():
        with rank_failures():
            dist.broadcast(tensor, 0)
    return tensor


def broadcast_value(value: T | None) -> T:
    """What rank 0 has given; the others give None.

    Raises:
        RankFailedError: another rank fails meanwhile.
    """
    held = [value]
    with rank_failures():
        dist.broadcast_object_list(held, 0)
    found = held[0]
    assert found is not None
    return found
