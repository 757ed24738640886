r"""Model file: a header, a digest, and the pickled model.

Layout: ``TBMODEL4\n``, four bytes of header length (big endian), the header as JSON, the SHA-256 of the rest, the
rest: a pickle of the `TrainedModel`. The digest detects damage, not malice: a writer of the store can also write the
digest. So the pickle is read through an allow-list: classes of the advisor's core and models and of the schemas, trees
of scikit-learn and LightGBM, and a few functions that rebuild arrays; anything else refuses the file before it runs.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import Enum
from importlib.metadata import version
from typing import Any, Final, cast

from schemas.predictions import ModelName
from services.advisor.core.trained_model import TrainedModel

MAGIC: Final = b"TBMODEL5\n"
_LIBRARIES: Final = ("numpy", "scikit-learn", "lightgbm")
_LENGTH_BYTES: Final = 4
_DIGEST_BYTES: Final = 32
_MAX_HEADER_BYTES: Final = 1 << 16
_CLASSES_OF: Final = ("services.advisor.core.", "services.advisor.models.", "schemas.")
_ALLOWED: Final = frozenset(
    {
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("builtins", "complex"),
        ("builtins", "bytearray"),
        ("builtins", "slice"),
        ("builtins", "object"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("collections", "Counter"),
        ("copyreg", "_reconstructor"),
        ("datetime", "date"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy", "float64"),
        ("numpy", "int64"),
        ("numpy", "bool"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("_codecs", "encode"),
        ("services.advisor.model_file", "restored"),
        ("lightgbm.basic", "Booster"),
        ("sklearn.ensemble._forest", "RandomForestRegressor"),
        ("sklearn.tree._classes", "DecisionTreeRegressor"),
        ("sklearn.tree._tree", "Tree"),
    }
)
"""Besides classes of `_CLASSES_OF`: constructors of plain values, and the libraries' trees, listed one by one: other
classes of theirs have side effects when constructed (`numpy.memmap` opens files)."""


class UnusableModelError(ValueError):
    """The bytes are not a model that this version can use; the text gives the reason. Remedy: train anew."""


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a model file."""

    algorithm: str
    version: str
    data_hash: str
    records: int
    tasks: int
    trained_ns: int
    seed: int
    libraries: Mapping[str, str] = field(default_factory=dict)

    def name(self) -> ModelName:
        """The model's name in every answer."""
        return ModelName(
            model=self.algorithm,
            version=self.version,
            data_hash=self.data_hash,
            records=self.records,
            tasks=self.tasks,
            trained_ns=self.trained_ns,
        )


def libraries() -> dict[str, str]:
    """Versions of the libraries that a pickled model depends on."""
    return {name: version(name) for name in _LIBRARIES}


def pack(header: Header, trained: TrainedModel) -> bytes:
    """Return the file's bytes."""
    written = io.BytesIO()
    _Pickler(written, protocol=5).dump(trained)
    body = written.getvalue()
    encoded = json.dumps(asdict(header), sort_keys=True).encode()
    digest = hashlib.sha256(encoded + body).digest()
    return MAGIC + len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded + digest + body


def read_header(data: bytes) -> Header:
    """Return the file's header.

    Raises:
        UnusableModelError: it is not a model file, is damaged, or was written with other versions of the libraries.
    """
    return _split(data)[0]


def unpack(data: bytes) -> tuple[Header, TrainedModel]:
    """Return the header and the model.

    Raises:
        UnusableModelError: as `read_header`, or the pickle contains a class outside of the allow-list.
    """
    header, body = _split(data)
    try:
        trained = _Unpickler(io.BytesIO(body)).load()
    except UnusableModelError:
        raise
    except Exception as error:  # a pickle's content can raise anything
        raise UnusableModelError(f"model {header.version} cannot be loaded: {type(error).__name__}: {error}") from error
    if not all(hasattr(trained, name) for name in ("predict", "level", "encoder")):
        raise UnusableModelError(f"model {header.version} is a {type(trained).__name__}, no trained")
    return header, cast("TrainedModel", trained)


def _split(data: bytes) -> tuple[Header, bytes]:
    start = len(MAGIC) + _LENGTH_BYTES
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise UnusableModelError("this is no model file of ours, or of another format version")
    length = int.from_bytes(data[len(MAGIC) : start], "big")
    if length > _MAX_HEADER_BYTES or len(data) < start + length + _DIGEST_BYTES:
        raise UnusableModelError("the model file ends too early")
    encoded, body = data[start : start + length], data[start + length + _DIGEST_BYTES :]
    digest = data[start + length : start + length + _DIGEST_BYTES]
    if hashlib.sha256(encoded + body).digest() != digest:
        raise UnusableModelError("the model file is damaged: its digest differs")
    try:
        header = Header(**json.loads(encoded))
    except (ValueError, TypeError) as error:
        raise UnusableModelError(f"the model file's header cannot be read: {error}") from error
    here = libraries()
    if header.libraries != here:
        changed = [
            f"{name} {header.libraries.get(name)} (here {found})"
            for name, found in here.items()
            if header.libraries.get(name) != found
        ]
        raise UnusableModelError(f"model {header.version} was made with {', '.join(changed)}")
    return header, body


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Members of enumerations by value, as Debian's Python 3.11.2 would write a call of `getattr`, others do not.

        Dataclasses by the names of their fields: those with slots are pickled by position, so that a model of a version
        with other fields would be read with each value in another's place.
        """
        if isinstance(value, Enum):
            return type(value), (value.value,)
        if is_dataclass(value) and not isinstance(value, type):
            return restored, (type(value), {one.name: getattr(value, one.name) for one in fields(value)})
        return NotImplemented


def restored(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Return an instance of a dataclass with these values of its fields.

    Raises:
        UnusableModelError: it has other fields here.
    """
    if {one.name for one in fields(kind)} != values.keys():
        raise UnusableModelError(f"the model is of another version: {kind.__name__} has other fields here")
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Resolve allowed classes only."""
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if f"{module}.".startswith(_CLASSES_OF):
            found = getattr(importlib.import_module(module), name, None)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise UnusableModelError(f"the model holds {module}.{name}, which no model may hold")
