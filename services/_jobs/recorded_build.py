"""A model's construction, recorded without memory for its values, which are computed later, one after another.

While it is recorded, every tensor is on torch's meta device: it has a shape and no values (and says that it is on the
CPU, else functions that do nothing on the meta device would be left out). Calls of operators are kept with the storages
that they read and write. Replayed in an order in which each storage and the random generator see the
same calls as before, they give the same bits; a storage is freed once nothing reads it any more. So who needs a part
of each parameter never has more than some of them whole: what initialises a parameter anew forgets the values before.

A construction that looks at values, draws in a way that cannot be repeated, or keeps tensors outside of parameters and
buffers cannot be recorded (`UnrecordableError`). It has to be run for real, then: with the whole model in memory.
"""

from __future__ import annotations

import gc
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

_GENERATOR: Final = -1
"""Stands for the random generator among storages: calls that draw are in order, as calls that write one storage are."""
_OVERWRITING: Final = frozenset(
    {"bernoulli_", "copy_", "exponential_", "fill_", "normal_", "random_", "uniform_", "zero_"}
)
"""What was in their first argument before does not matter."""
_WITHOUT_VALUES: Final = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_CHANGING_STORAGE: Final = frozenset({"resize_", "resize_as_", "set_"})
_IS_META: Final = Tensor.is_meta.__get__  # type: ignore[attr-defined]  # its stub has the type of the value
_WHERE: Final = (Tensor.device.__get__, _IS_META)
_META: Final = torch.device("meta")
_CPU: Final = torch.device("cpu")


class UnrecordableError(Exception):
    """This construction cannot be recorded; the message says why."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor as a view of a storage."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class _Call:
    """Of an operator; tensors stand in it as `_Place`, those that have values as themselves."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    outputs: tuple[_Place, ...]
    storages: tuple[int, ...]
    """That it reads, writes or makes."""
    overwritten: int | None = None
    """Whose values before do not matter."""


@dataclass(slots=True)
class RecordedBuild:
    """What was recorded."""

    calls: list[_Call]
    sizes: dict[int, int]
    """Bytes of each storage."""
    targets: dict[int, list[tuple[str, _Place]]]
    """Parameters and buffers by storage, with their names in the model."""
    given: dict[str, Tensor]
    """Parameters and buffers that have values already."""
    given_bytes: int
    """Of tensors that were not computed: they are in memory from the beginning, such as those of a file."""
    _state: Tensor
    """Of the random generator, before."""

    def values(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter and buffer, once it has its value; who iterates keeps of it what is needed.

        Afterwards the random generator is as the construction would have left it.
        """
        torch.set_rng_state(self._state)
        yield from self.given.items()
        held: dict[int, torch.UntypedStorage] = {}
        touched = {storage for call in self.calls for storage in call.storages}
        for storage in self.targets.keys() - touched:
            yield from self._of(storage, held)
        for call, finished, forgotten in self._in_order():
            self._carry_out(call, held)
            for storage in finished:
                yield from self._of(storage, held)
            for storage in (*finished, *forgotten):
                held.pop(storage, None)

    def _of(self, storage: int, held: dict[int, torch.UntypedStorage]) -> Iterator[tuple[str, Tensor]]:
        for name, place in self.targets.get(storage, ()):
            yield name, self._tensor(place, held)

    def _in_order(self) -> Iterator[tuple[_Call, list[int], list[int]]]:
        """Calls with the storages that no later one reads, and those that the next one overwrites.

        What follows from a call comes at once where it may, such as another type for the values just drawn: in the
        order of recording, a model that is converted as a whole would be whole before.
        """
        later: defaultdict[int, deque[int]] = defaultdict(deque)
        for number, call in enumerate(self.calls):
            for storage in call.storages:
                later[storage].append(number)
        done = [False] * len(self.calls)
        for first in range(len(self.calls)):
            waiting = [first]
            while waiting:
                number = waiting.pop()
                call = self.calls[number]
                if done[number] or any(later[storage][0] != number for storage in call.storages):
                    continue
                done[number] = True
                for storage in call.storages:
                    later[storage].popleft()
                following = {storage: later[storage][0] for storage in call.storages if later[storage]}
                yield (
                    call,
                    [storage for storage in call.storages if storage not in following],
                    [storage for storage, after in following.items() if self.calls[after].overwritten == storage],
                )
                waiting += following.values()

    @torch.no_grad()
    def _carry_out(self, call: _Call, held: dict[int, torch.UntypedStorage]) -> None:
        arguments, named = tree_map_only(_Place, lambda place: self._tensor(place, held), (call.arguments, call.named))
        outputs = _tensors(call.function(*arguments, **named))
        for place, output in zip(call.outputs, outputs, strict=True):
            if place.storage in held:
                continue
            if (output.size(), output.stride(), output.storage_offset()) == (place.size, place.stride, place.offset):
                held[place.storage] = output.untyped_storage()
            else:  # laid out otherwise than on the meta device
                self._tensor(place, held).copy_(output)

    def _tensor(self, place: _Place, held: dict[int, torch.UntypedStorage]) -> Tensor:
        if place.storage not in held:
            size = self.sizes[place.storage]
            held[place.storage] = torch.UntypedStorage(size)  # type: ignore[no-untyped-call]  # has no types
        empty = torch.empty(0, dtype=place.dtype)
        return empty.set_(held[place.storage], place.offset, place.size, place.stride)


def recorded(build: Callable[[], nn.Module]) -> tuple[nn.Module, RecordedBuild]:
    """The model, whose parameters and buffers have no values, and what computes them.

    Torch's random generator is left as it was before; where it cannot be recorded, so are Python's and NumPy's.

    Raises:
        UnrecordableError: it has to be built for real.
        Exception: what ``build`` raises, which may be for want of values.
    """
    state, of_python = torch.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    recorder, is_recorded = _Recorder(), False
    try:
        with recorder, _AsOnCpu(), _draws_by_rejection(recorder):
            model = build()
        found = model, recorder.finished(model, state)
        is_recorded = True
        return found
    finally:
        torch.set_rng_state(state)
        if not is_recorded:
            random.setstate(of_python)
            if numpy is not None:
                numpy.random.set_state(of_numpy)


@dataclass
class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its base has no types
    calls: list[_Call] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    _references: dict[int, StorageWeakRef] = field(default_factory=dict)
    """By address, which no other storage gets as long as a weak reference is kept."""
    _given: dict[int, int] = field(default_factory=dict)
    """Bytes of storages with values."""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._expected = torch.get_rng_state()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        name = func.overloadpacket.__name__
        self._check(func, name, args, given)
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if draws:
            self._note_seed()
        makes = any(argument.name == "device" for argument in func._schema.arguments)  # noqa: SLF001 - has no other name
        on_meta, named = tree_map_only(Tensor, _without_values, (args, given))
        result = func(*on_meta, **(named | {"device": _META} if makes else named))
        outputs = _tensors(result)
        if not outputs:
            raise UnrecordableError(f"it looks at values ({name})")
        if draws:
            self._note_draw()
        kept = {"device": _CPU, "dtype": outputs[0].dtype} if makes else {}
        self._keep(func, (args, given | kept), outputs, draws=draws)
        return result

    def _check(self, func: Any, name: str, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        if name in _CHANGING_STORAGE or given.get("generator") is not None:
            raise UnrecordableError(f"it calls {name} in a way that is not repeated here")
        if given.get("device") is not None and torch.device(given["device"]).type not in {"cpu", "meta"}:
            raise UnrecordableError(f"it computes on {given['device']}")
        for place, value in enumerate(tree_flatten((args, given))[0]):
            if not isinstance(value, Tensor) or value.is_meta:
                continue
            storage = value.untyped_storage()
            if (func._schema.is_mutable and place == 0) or not storage.resizable():  # noqa: SLF001 - has no other name
                raise UnrecordableError(f"values that may change meanwhile are given to {name}")
            self._given[storage.data_ptr()] = storage.nbytes()

    def _note_seed(self) -> None:
        """A new seed since the last draw is a call of its own."""
        state = torch.get_rng_state()
        if torch.equal(state, self._expected):
            return
        seed = torch.initial_seed()
        if not torch.equal(state, torch.Generator().manual_seed(seed).get_state()):
            raise UnrecordableError("it sets the random generator to an earlier state")
        self.calls.append(_Call(torch.manual_seed, (seed,), {}, (), (_GENERATOR,)))
        self._expected = state

    def _note_draw(self) -> None:
        """Nothing was drawn on the meta device: with one number drawn each time, no state comes twice."""
        torch.rand(())
        self._expected = torch.get_rng_state()

    def draw(self, function: Callable[..., Tensor], tensor: Tensor, arguments: tuple[Any, ...]) -> Tensor:
        """Keep the call of a whole function that fills a tensor, and reads what it has drawn."""
        with _disable_current_modes():
            self._note_seed()
            place = self._place(tensor)
            overwritten = place.storage if self._is_whole(place) else None
            storages = (place.storage, _GENERATOR)
            self.calls.append(_Call(function, (place, *arguments), {}, (place,), storages, overwritten))
            self._note_draw()
        return tensor

    def _keep(self, func: Any, given: tuple[Any, Any], outputs: list[Tensor], *, draws: bool) -> None:
        name, known = func.overloadpacket.__name__, set(self.sizes)
        arguments, named = tree_map_only(Tensor, lambda value: self._place(value) if value.is_meta else value, given)
        read = [value for value in tree_flatten((arguments, named))[0] if isinstance(value, _Place)]
        places = tuple(self._place(output) for output in outputs)
        is_view = all(place.storage in known for place in places) and not func._schema.is_mutable  # noqa: SLF001 - as above
        if name in _WITHOUT_VALUES or (is_view and not draws):
            return
        first, others = (read[0], read[1:]) if read else (None, [])
        overwritten = None
        if name in _OVERWRITING and first is not None and self._is_whole(first):
            overwritten = None if any(other.storage == first.storage for other in others) else first.storage
        storages = dict.fromkeys(place.storage for place in (*read, *places))
        self.calls.append(_Call(func, arguments, named, places, (*storages, *((_GENERATOR,) * draws)), overwritten))

    def _place(self, value: Tensor) -> _Place:
        reference = StorageWeakRef(value.untyped_storage())  # type: ignore[no-untyped-call]  # has no types
        storage: int = reference.cdata
        if storage not in self._references:
            self._references[storage] = reference
            self.sizes[storage] = value.untyped_storage().nbytes()
        return _Place(storage, value.dtype, tuple(value.size()), value.stride(), int(value.storage_offset()))

    def _is_whole(self, place: _Place) -> bool:
        elements = torch.Size(place.size).numel()
        return elements * place.dtype.itemsize == self.sizes[place.storage]

    def finished(self, model: nn.Module, state: Tensor) -> RecordedBuild:
        """What was recorded, of this model."""
        self._note_seed()
        targets: dict[int, list[tuple[str, _Place]]] = {}
        given: dict[str, Tensor] = {}
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.is_meta:
                place = self._place(value)
                targets.setdefault(place.storage, []).append((name, place))
            else:
                given[name] = value.detach()
                self._given[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        gc.collect()
        others = [one for storage, one in self._references.items() if storage not in targets]
        if not all(one.expired() for one in others):  # type: ignore[no-untyped-call]  # has no types
            raise UnrecordableError("it keeps a tensor that is neither a parameter nor a buffer")
        return RecordedBuild(self.calls, self.sizes, targets, given, sum(self._given.values()), state)


class _AsOnCpu(TorchFunctionMode):
    """Tensors of the meta device say that they are on the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _WHERE:
            return _CPU if isinstance(result, torch.device) else func != _IS_META and result
        return result


@contextmanager
def _draws_by_rejection(recorder: _Recorder) -> Iterator[None]:
    """`torch.nn.init.trunc_normal_` draws until all values are inside of its bounds."""
    original = nn.init._no_grad_trunc_normal_

    def drawn(tensor: Tensor, *arguments: Any, generator: torch.Generator | None = None) -> Tensor:
        if generator is not None:
            raise UnrecordableError("it draws by a generator of its own")
        return recorder.draw(original, tensor, arguments)

    nn.init._no_grad_trunc_normal_ = drawn  # type: ignore[assignment]  # takes what it passes on
    try:
        yield
    finally:
        nn.init._no_grad_trunc_normal_ = original


def _without_values(value: Tensor) -> Tensor:
    if value.is_meta:
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=_META)


def _tensors(result: Any) -> list[Tensor]:
    return [value for value in tree_flatten(result)[0] if isinstance(value, Tensor)]
