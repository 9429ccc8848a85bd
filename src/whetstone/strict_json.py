"""Conversion of Python values to strict JSON, without NaN and infinities.

The same value gives the same text in every process.

Note:
    Python writes NaN and Infinity as bare words, which `jq` and browsers reject. The order of a set of strings differs
    between processes, so sets are sorted.
"""

from __future__ import annotations

import base64
import collections
import collections.abc
import dataclasses
import datetime
import decimal
import fractions
import ipaddress
import itertools
import json
import math
import sqlite3
import types
import uuid
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

MAX_VALUES = 100_000
"""Maximum number of values that are read from an iterator."""
_TIMES = (datetime.date, datetime.time)
_AS_TEXT = (
    decimal.Decimal, fractions.Fraction, complex, uuid.UUID, PurePath, datetime.timedelta, datetime.tzinfo,
    collections.UserString, ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network,
)  # fmt: skip
_SEQUENCES = (
    collections.abc.Sequence, collections.abc.KeysView, collections.abc.ValuesView, collections.abc.ItemsView,
)  # fmt: skip
_TO_LIST = ("tolist", "to_dicts", "to_list", "to_pylist", "as_py")
"""Methods of NumPy, PyTorch, JAX and arrays, of Polars, and of PyArrow."""


def to_plain_values(value: Any, *, other: Callable[[Any], Any] | None = None) -> Any:
    """Convert a value to types that JSON has; NaN and infinities become None.

    Dataclasses, pydantic and attrs objects become dicts, enums their values, dates, paths, decimals and UUIDs strings,
    bytes their text in UTF-8 or else in base64. Arrays, tensors, tables and iterators become lists, sets sorted lists.

    Args:
        value: Value to convert.
        other: Function that converts a value of any other type; None: such a value is an error.

    Returns:
        Nested dicts, lists, strings, numbers, booleans and None.

    Raises:
        TypeError: If a value has another type, which the message names, or an iterator yields too many values.
    """
    if isinstance(value, Enum):
        return to_plain_values(value.value, other=other)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [to_plain_values(each, other=other) for each in value]
    if isinstance(value, _TIMES):
        return value.isoformat() if value == value else None  # pandas' NaT is a date and equals nothing
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _text_of(bytes(value))
    if hasattr(type(value), "model_dump"):
        return to_plain_values(value.model_dump(warnings=False), other=other)
    if (fields := _fields_of(value)) is not None:
        return _object_of(fields, other)
    if isinstance(value, _SEQUENCES):
        return [to_plain_values(each, other=other) for each in value]
    if isinstance(value, collections.abc.Set):
        return sorted((to_plain_values(each, other=other) for each in value), key=_order)
    if type(value).__module__.partition(".")[0] == "pandas" and (read := _PANDAS.get(type(value).__name__)):
        return to_plain_values(read(value), other=other)
    for name in _TO_LIST:
        if convert := getattr(type(value), name, None):
            read = convert(_readable(value))
            return to_plain_values(float(value) if type(read) is type(value) else read, other=other)  # a long double
    if isinstance(value, collections.abc.Iterator):
        return to_plain_values(read_iterator(value), other=other)
    if other is not None:
        return other(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} cannot be written as JSON")


def to_json(value: Any, *, indent: int | None = None, other: Callable[[Any], Any] | None = None) -> str:
    """Convert a value to strict JSON text; see `to_plain_values`.

    Args:
        value: Value to convert.
        indent: Number of spaces per level; None: one line.
        other: Function that converts a value of any other type; None: such a value is an error.

    Raises:
        TypeError: Same as for `to_plain_values`.
    """
    return json.dumps(to_plain_values(value, other=other), indent=indent, allow_nan=False)


def read_iterator(values: Iterable[Any]) -> list[Any]:
    """Read all values of an iterator into a list.

    Raises:
        TypeError: If there are more than `MAX_VALUES` values.
    """
    taken = list(itertools.islice(values, MAX_VALUES + 1))
    if len(taken) > MAX_VALUES:
        raise TypeError(f"{type(values).__name__} yields more than {MAX_VALUES} values")
    return taken


def _fields_of(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the items of a mapping or of an object with fields; otherwise None."""
    if isinstance(value, Mapping):
        return value.items()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, types.SimpleNamespace):
        return vars(value).items()
    if isinstance(value, sqlite3.Row):
        return zip(value.keys(), tuple(value), strict=True)
    if attributes := getattr(type(value), "__attrs_attrs__", None):
        return [(attribute.name, getattr(value, attribute.name)) for attribute in attributes]
    return None


def _object_of(fields: Iterable[tuple[Any, Any]], other: Callable[[Any], Any] | None) -> Any:
    """Return a dict; or a list of pairs if two keys have the same text."""
    pairs = [(_key(key, other), to_plain_values(inner, other=other)) for key, inner in fields]
    mapping = dict(pairs)
    return mapping if len(mapping) == len(pairs) else [list(pair) for pair in pairs]


def _key(key: Any, other: Callable[[Any], Any] | None) -> str:
    key = to_plain_values(key, other=other)
    return key if isinstance(key, str) else json.dumps(key, ensure_ascii=False)


def _order(value: Any) -> tuple[int, Any]:
    """Return a sort key of JSON values: numbers, strings, then others by their text."""
    if isinstance(value, int | float):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, json.dumps(value, sort_keys=True))


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


def _readable(value: Any) -> Any:
    if hasattr(value, "detach"):
        return value.detach()
    if type(value).__module__ == "numpy" and value.dtype.kind in "mM":  # nanoseconds would become integers
        return value.astype(str)
    return value


def _rows_of(frame: Any) -> Any:
    """Convert a pandas table to one dict per row.

    A table with a custom index or duplicate column names is converted to its parts.
    """
    columns, rows = frame.columns.tolist(), list(frame.itertuples(index=False, name=None))
    if _is_numbered(frame.index) and frame.columns.is_unique:
        return [dict(zip(columns, row, strict=True)) for row in rows]
    return {"index": frame.index.tolist(), "columns": columns, "data": rows}


def _values_of(series: Any) -> Any:
    if _is_numbered(series.index):
        return series.tolist()
    pairs = list(zip(series.index.tolist(), series.tolist(), strict=True))
    return dict(pairs) if series.index.is_unique else pairs


def _is_numbered(index: Any) -> bool:
    """Return whether a pandas index only numbers the rows."""
    return type(index).__name__ == "RangeIndex" and (index.start, index.step) == (0, 1)


_PANDAS: dict[str, Callable[[Any], Any]] = {
    "DataFrame": _rows_of, "Series": _values_of, "NAType": lambda value: None,
}  # fmt: skip
