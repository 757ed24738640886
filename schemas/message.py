"""The base of every message, and byte columns for the hot path.

A message travels as one msgpack map that holds its type name and schema version beside its fields. Fields are only
ever added; readers ignore fields that they do not know. Columns are little-endian arrays in ``bytes``: their shape is
validated once per message, their content is read with ``numpy.frombuffer`` and never copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

ROW_SEPARATOR: Final = "\n"


class Message(BaseModel):
    """A frozen record with a type name (``turnbuckle.<domain>.v<major>.<name>``) and a schema version."""

    # A validator is compiled at the first use: all of them are a sixth of a service's start, and it uses few.
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, defer_build=True)

    type_name: ClassVar[str]
    schema_version: ClassVar[int] = 1
    sparse: ClassVar[bool] = False
    """Fields at their defaults are not sent: for what is stored in great numbers. Such a default never changes."""


def renamed(name: str, before: str) -> Any:
    """A field that is also read under the name that it had in an earlier version: for ``Annotated``."""
    return Field(validation_alias=AliasChoices(name, before))


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The element type of a byte column, as a numpy type string such as ``<i8``."""

    code: str

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """Describe the column in the JSON schema."""
        schema: dict[str, Any] = handler(core_schema)
        schema["description"] = f"column of {np.dtype(self.code).name}, little-endian, one element per row"
        schema["x-numpy-dtype"] = self.code
        return schema


Int64Column = Annotated[bytes, ColumnType("<i8")]
Int32Column = Annotated[bytes, ColumnType("<i4")]
UInt16Column = Annotated[bytes, ColumnType("<u2")]
UInt8Column = Annotated[bytes, ColumnType("|u1")]
Float64Column = Annotated[bytes, ColumnType("<f8")]

Count = Annotated[int, Field(ge=0, le=(1 << 62) - 1)]
"""A number that fits a 64-bit column with room for sums: sequences, epochs, times in nanoseconds."""

Columns = Mapping[str, "np.ndarray[Any, Any] | Sequence[int] | Sequence[float]"]


class ColumnarMessage(Message):
    """A table: container keys joined by newlines, and one byte column per quantity.

    The keys travel as one string so that a reader recognises an unchanged set of rows by one comparison.
    """

    containers: str = ""
    """Container keys joined by newlines, one row each; empty: no rows."""

    column_types: ClassVar[dict[str, np.dtype[Any]]] = {}
    _item_bytes: ClassVar[list[tuple[str, int]]] = []

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Collect the columns once per class."""
        super().__pydantic_init_subclass__(**kwargs)
        cls.column_types = {
            name: np.dtype(meta.code)
            for name, field in cls.model_fields.items()
            for meta in field.metadata
            if isinstance(meta, ColumnType)
        }
        cls._item_bytes = [(name, kind.itemsize) for name, kind in cls.column_types.items()]

    @classmethod
    def build(cls, containers: Sequence[str], columns: Columns, **fields: Any) -> Self:
        """Make a message from arrays; each is converted to its column's type.

        Raises:
            ValueError: an array's length differs from the number of containers, or a key holds a newline.
        """
        packed = {
            name: np.ascontiguousarray(columns[name], dtype=kind).tobytes() for name, kind in cls.column_types.items()
        }
        return cls(containers=ROW_SEPARATOR.join(containers), **packed, **fields)

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        rows, fields = self.row_count, self.__dict__
        for name, item_bytes in self._item_bytes:
            length = len(fields[name])
            if length != rows * item_bytes:
                raise ValueError(f"column {name} holds {length} bytes, {rows} containers need {rows * item_bytes}")
        return self

    @property
    def row_count(self) -> int:
        """Number of containers."""
        return self.containers.count(ROW_SEPARATOR) + 1 if self.containers else 0

    @property
    def keys(self) -> list[str]:
        """Container keys, one per row."""
        return self.containers.split(ROW_SEPARATOR) if self.containers else []

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """A read-only view of one column, shape ``(row_count,)``."""
        return np.frombuffer(getattr(self, name), dtype=self.column_types[name])

    def rows(self) -> list[dict[str, Any]]:
        """The table as dictionaries: for ``turnbuckle tap`` and tests."""
        arrays = {name: self.column(name).tolist() for name in self.column_types}
        return [
            {"container": key} | {name: values[row] for name, values in arrays.items()}
            for row, key in enumerate(self.keys)
        ]
