"""Model files and the model store: what is damaged, foreign or old is refused with a reason, and never run."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from schemas.predictions import Objective
from schemas.streams import MODELS
from services._runtime.bus.api import BusError
from services._runtime.telemetry.logging import get_logger
from services.advisor.model_file import MAGIC, Header, UnusableModelError, libraries, pack, read_header, unpack
from services.advisor.model_store import ModelStore
from services.advisor.models.baselines.regressor_model import RegressorAlgorithm
from services.advisor.models.explanations import Medians
from services.advisor.models.thesis_bilstm.model import ThesisRegressor
from services.advisor.ports import TrainingSet
from services.advisor.settings import AdvisorSettings
from services.advisor.training import ALGORITHMS, _pack_training_set, read_training_set, train
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.bus.memory_objects import MemoryObjects
from tests.support.fake_model import FakeModel
from tests.support.training_jobs import profile, records

ROOT = Path(__file__).parents[3]


def header(version: str = "fake-1", **changes: Any) -> Header:
    made = Header("fake", version, "hash", 9, 3, trained_ns=7, seed=0, libraries=libraries())
    return dataclasses.replace(made, **changes)


@pytest.fixture
def small() -> bytes:
    """A small model's file, of a class that a model may hold."""
    found = ALGORITHMS["linear"]().fit(records(("a", "b")), {}, seed=0)
    return pack(header(), found)


def test_a_model_comes_back(small: bytes) -> None:
    """With what it says it is."""
    found, trained = unpack(small)

    assert found == header()
    assert trained.level == 0.9
    assert found.name().version == "fake-1"


@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        (lambda data: b"", "no model file"),
        (lambda data: b"\x80\x05N.", "no model file"),
        (lambda data: data[:20], "ends too early"),
        (lambda data: data[:-1], "damaged"),
        (lambda data: data[:-5] + b"xxxxx", "damaged"),
        (lambda data: data.replace(b'"records": 9', b'"records": 8'), "damaged"),
        (lambda data: MAGIC + b"\xff\xff\xff\xff" + data, "ends too early"),
    ],
)
def test_damage(small: bytes, spoiled: Any, words: str) -> None:
    """Is told by its kind."""
    with pytest.raises(UnusableModelError, match=words):
        unpack(spoiled(small))


def test_other_libraries() -> None:
    """A model of other versions is trained anew rather than trusted."""
    data = pack(header(libraries=libraries() | {"numpy": "1.0"}), FakeModel())

    with pytest.raises(UnusableModelError, match=r"made with numpy 1\.0 \(here "):
        read_header(data)


def test_a_model_of_a_version_with_other_fields_is_not_read(small: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """By position each value would have been taken for another field's."""
    other = make_dataclass("Medians", [("new", float), *((one.name, Any) for one in fields(Medians))])
    other.__module__ = Medians.__module__
    monkeypatch.setattr("services.advisor.models.explanations.Medians", other)

    with pytest.raises(UnusableModelError, match="of another version: Medians has other fields here"):
        unpack(small)


class Evil:
    """Would write a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_a_foreign_pickle_is_refused_before_it_runs(tmp_path: Path) -> None:
    """The digest is right, for whoever may write may also compute it; what it calls is no part of a model."""
    mark = tmp_path / "ran"
    data = pack(header(), Evil(mark))  # type: ignore[arg-type]

    with pytest.raises(UnusableModelError, match=r"holds posix\.system"):
        unpack(data)

    assert not mark.exists()


def test_a_class_that_does_something_when_it_is_made_is_refused(tmp_path: Path) -> None:
    """That it is a class of a library that models are made of is no reason to call it: this one empties files."""
    kept = tmp_path / "kept"
    kept.write_text("something")

    class Mapped:
        def __reduce__(self) -> Any:
            return np.memmap, (str(kept), "uint8", "w+", 0, (1,))

    with pytest.raises(UnusableModelError, match=r"holds numpy\S*memmap"):
        unpack(pack(header(), Mapped()))  # type: ignore[arg-type]

    assert kept.read_text() == "something"


@pytest.mark.parametrize(
    "body",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy.testing\nrundocs\n(tR.",
        b"cservices.advisor.models.baselines.plain\nbuild\n(tR.",
        b"csklearn.utils.fixes\n_sparse_linalg_cg\n(tR.",
        b"cservices.advisor.core.nothing\nNothing\n(tR.",
        b"not a pickle",
        pickle.dumps(5),
        pickle.dumps({"level": 1}),
    ],
)
def test_functions_and_other_things_are_refused(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of the core are welcome, its functions are not; a number is no trained."""
    monkeypatch.setattr(pickle, "dumps", lambda *_args, **_keywords: body)

    with pytest.raises(UnusableModelError):
        unpack(pack(header(), FakeModel()))


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"thesis"}))
def test_every_algorithm_can_be_stored(algorithm: str) -> None:
    """What the service can be told to use passes the allow-list, and learns the same under the same seed."""
    training_set = TrainingSet(tuple(records(("a", "b", "c"))), tuple(map(profile, "abc")), algorithm, 3, "hash")

    data = train(training_set, 1)

    found, trained = unpack(data)
    assert (found.algorithm, found.version, found.records, found.tasks) == (algorithm, f"{algorithm}-hash-s3", 72, 3)
    assert trained.level == 0.9
    assert train(training_set, 1) == data


def test_enumerations_are_stored_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's Python 3.11.2 would pickle a call of `getattr`, which no model may hold: nothing could be trained."""
    training_set = TrainingSet(tuple(records(("a", "b", "c"))), tuple(map(profile, "abc")), "gp", 3, "hash")
    usual = train(training_set, 1)

    monkeypatch.setattr(Objective, "__reduce_ex__", lambda self, _protocol: (getattr, (type(self), self.name)))

    assert train(training_set, 1) == usual
    unpack(usual)


def test_the_thesis_networks_can_be_stored() -> None:
    """They hold arrays only; a few epochs show it as well as 400."""
    short = RegressorAlgorithm(ThesisRegressor(Objective.TIME, "thesis", epochs=2), folds=2)
    trained = short.fit(records(("a", "b", "c")), {f"run-{task}": profile(task) for task in "abc"}, seed=0)

    found, again = unpack(pack(header(), trained))

    assert found == header()
    assert again.level == 0.9
    assert ALGORITHMS["thesis"]().name == "thesis"


def test_the_settings_know_every_algorithm() -> None:
    """And no other."""
    annotation = AdvisorSettings.model_fields["algorithm"].annotation

    assert set(get_args(annotation)) == set(ALGORITHMS)


def test_records_that_teach_nothing() -> None:
    """An error with a reason, not a model. Of the three one has run out of memory."""
    few = TrainingSet(tuple(records(("a",))[:3]), (), "linear", 0, "hash")

    with pytest.raises(ValueError, match="2 finished jobs are known"):
        train(few, 1)


def test_a_lesson_comes_back() -> None:
    """As it goes to the process that learns."""
    training_set = TrainingSet(tuple(records(("a",))), (profile("a"),), "gp", 5, "hash")

    assert read_training_set(io.BytesIO(_pack_training_set(training_set))) == training_set


def store(broker: MemoryBroker, algorithm: str = "fake") -> ModelStore:
    return ModelStore(MemoryBus(broker).objects(MODELS), algorithm, 2, get_logger("test"))


async def test_the_newest_is_found_and_older_ones_go(small: bytes) -> None:
    """By the store's order; only so many stay."""
    broker = MemoryBroker()
    mine, other = store(broker), store(broker)
    trained = unpack(small)[1]
    for version in ("c", "b", "a"):
        await mine.save(pack(header(version), trained))

    found = await other.newest()

    assert found is not None
    assert found.name.version == "a"
    assert await other.newest(found.revision) is None
    assert set(await MemoryBus(broker).objects(MODELS).names()) == {"a", "b"}


async def test_algorithms_share_a_store(small: bytes) -> None:
    """Each finds its own models, and removes no other's."""
    broker = MemoryBroker()
    trained = unpack(small)[1]
    for version in ("a", "b", "c"):
        await store(broker).save(pack(header(version), trained))
        await store(broker, "other").save(pack(header(f"other-{version}", algorithm="other"), trained))

    mine, others = await store(broker).newest(), await store(broker, "other").newest()

    assert mine is not None
    assert others is not None
    assert (mine.name.version, others.name.version) == ("c", "other-c")
    assert len(await MemoryBus(broker).objects(MODELS).names()) == 4


async def test_a_spoiled_one_is_passed_over_once(small: bytes) -> None:
    """The one before it serves; the spoiled one counts once and is not there for those who ask whether to train."""
    broker = MemoryBroker()
    mine = store(broker)
    await mine.save(small)
    objects = MemoryBus(broker).objects(MODELS)
    await objects.put("newer", b"garbage")

    found, again = await mine.newest(), await mine.newest()

    assert found is not None
    assert again is not None
    assert found.name.version == again.name.version == "fake-1"
    assert mine.unusable_count == 1
    assert await mine.take_over("newer") is None
    assert await mine.take_over("fake-1") is not None


async def test_a_full_store_loses_its_oldest(small: bytes) -> None:
    """Rather than the newest; where not even an empty one has room, the model is used without it."""
    broker = MemoryBroker()
    mine = store(broker)
    trained = unpack(small)[1]
    await mine.save(pack(header("a"), trained))
    held = broker.object_store(MODELS.bucket_name("tb"))
    assert held is not None
    held.spec = dataclasses.replace(held.spec, max_bytes=len(small) + 100)

    newer = await mine.save(pack(header("b"), trained))
    held.spec = dataclasses.replace(held.spec, max_bytes=10)
    newest = await mine.save(pack(header("c"), trained))

    assert newer.revision > 0
    assert (newest.name.version, newest.revision) == ("c", newer.revision)
    assert held.objects == {}


async def test_a_model_is_used_also_where_it_cannot_be_stored(small: bytes) -> None:
    """The bus is away: the answer is there all the same, the store is tried again with the next model."""
    broker = MemoryBroker()
    mine = store(broker)
    broker.stop()

    model = await mine.save(small)

    assert (model.name.version, model.revision) == ("fake-1", 0)


async def test_what_could_not_be_stored_gives_way_to_nothing_older(
    small: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store can be read and not written: the older model there must not come back into use."""
    broker = MemoryBroker()
    mine = store(broker)
    trained = unpack(small)[1]
    await mine.save(pack(header("a"), trained))

    async def refused(*_arguments: object) -> None:
        raise BusError("no")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryObjects, "put", refused)
        newer = await mine.save(pack(header("b"), trained))

    assert newer.name.version == "b"
    assert await mine.newest(newer.revision) is None
    await store(broker).save(pack(header("c"), trained))
    newest = await mine.newest(newer.revision)
    assert newest is not None
    assert newest.name.version == "c"


async def test_an_older_model_that_is_taken_over_is_the_newest_again(small: bytes) -> None:
    """So that all replicas use it; the newest one is taken as it is; what is not there is not."""
    broker = MemoryBroker()
    mine = store(broker)
    trained = unpack(small)[1]
    first = await mine.save(pack(header("a"), trained))
    second = await mine.save(pack(header("b"), trained))

    as_it_is, again = await mine.take_over("b"), await mine.take_over("a")

    assert as_it_is is not None
    assert as_it_is.revision == second.revision
    assert again is not None
    assert (again.name, again.revision > second.revision) == (first.name, True)
    newest = await store(broker).newest()
    assert newest is not None
    assert newest.name.version == "a"
    assert await mine.take_over("c") is None
