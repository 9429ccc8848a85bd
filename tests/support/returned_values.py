"""Values of many types that tools return, each with the text that a model reads."""

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import sqlite3
import types
import uuid
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, RootModel, computed_field

WORDS = ["tea", "rice", "salt", "oil", "soap", "milk", "flour", "beans"]
SORTED = '["beans", "flour", "milk", "oil", "rice", "salt", "soap", "tea"]'


class Color(enum.Enum):
    """A color."""

    RED = "red"


class Unit(str, enum.Enum):  # noqa: UP042
    """A unit that is a string."""

    KG = "kg"


class Pair(NamedTuple):
    """Two fields."""

    first: int
    second: Any


@dataclasses.dataclass(frozen=True)
class Basket:
    """A dataclass that can be in a set."""

    owner: str
    items: frozenset[str]


class Order(BaseModel):
    """A pydantic model."""

    items: set[str]
    at: datetime.datetime
    note: Any = None

    @computed_field
    @property
    def count(self) -> int:
        """Number of items."""
        return len(self.items)


class Words(RootModel[set[str]]):
    """A pydantic model of one value."""


class Spoken:
    """An object with a text."""

    def __str__(self):
        return "spoken"


def row():
    """Return a row of SQLite."""
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    return connection.execute("select 1 as a, 'x' as b").fetchone()


def table(**options):
    """Return a pandas table."""
    columns = {"a": [1, 2], "b": ["x", None], "t": pd.to_datetime(["2024-05-06", None])}
    return pd.DataFrame(columns, **options)


AT = datetime.datetime(2024, 5, 6, 7, 8)
VALUES = {
    "dataclass": (lambda: Basket("Ada", frozenset(WORDS)), f'{{"owner": "Ada", "items": {SORTED}}}'),
    "dataclasses in a set": (
        lambda: {Basket(owner, frozenset("ba")) for owner in "bac"},
        '[{"owner": "a", "items": ["a", "b"]}, {"owner": "b", "items": ["a", "b"]}, '
        '{"owner": "c", "items": ["a", "b"]}]',
    ),
    "model": (
        lambda: Order(items=set(WORDS), at=AT, note={"b", "a"}),
        f'{{"items": {SORTED}, "at": "2024-05-06T07:08:00", "note": ["a", "b"], "count": 8}}',
    ),
    "root model": (lambda: [Words(set(WORDS))], f"[{SORTED}]"),
    "named tuple": (lambda: {"pair": Pair(1, {"b", "a"})}, '{"pair": [1, ["a", "b"]]}'),
    "enum": (lambda: Color.RED, '"red"'),
    "string enum": (lambda: [Unit.KG], '["kg"]'),
    "datetime": (lambda: AT, '"2024-05-06T07:08:00"'),
    "date": (lambda: [AT.date(), AT.time()], '["2024-05-06", "07:08:00"]'),
    "duration": (lambda: [datetime.timedelta(hours=1)], '["1:00:00"]'),
    "decimal": (lambda: {"price": decimal.Decimal("1.10")}, '{"price": "1.10"}'),
    "fraction": (lambda: [fractions.Fraction(1, 3), 1 + 2j], '["1/3", "(1+2j)"]'),
    "uuid": (lambda: [uuid.UUID(int=7)], '["00000000-0000-0000-0000-000000000007"]'),
    "path": (lambda: [pathlib.PurePosixPath("/a/b")], '["/a/b"]'),
    "address": (lambda: [ipaddress.ip_address("10.0.0.1")], '["10.0.0.1"]'),
    "bytes": (lambda: "ü".encode(), "ü"),
    "bytes that are not text": (lambda: b"\xff", "/w=="),
    "bytes inside": (lambda: [b"a", bytearray(b"b"), memoryview(b"c"), b"\xff"], '["a", "b", "c", "/w=="]'),
    "set": (lambda: set(WORDS), SORTED),
    "sets inside": (lambda: {"a": [frozenset(WORDS)]}, f'{{"a": [{SORTED}]}}'),
    "set of numbers": (lambda: {100, 9, 10, 1.5}, "[1.5, 9, 10, 100]"),
    "set of anything": (lambda: {"b", 2, None, ("x", 1), Color.RED}, '[2, "b", "red", ["x", 1], null]'),
    "difference of keys": (lambda: dict.fromkeys(WORDS).keys() - {"tea"}, SORTED.replace(', "tea"', "")),
    "keys": (lambda: {"b": 1, "a": 2}.keys(), '["b", "a"]'),
    "items": (lambda: {"b": 1, "a": 2}.items(), '[["b", 1], ["a", 2]]'),
    "keys that are not strings": (
        lambda: {1: "a", (1, "x"): "b", None: "c", AT: "d", Color.RED: "e", frozenset("ba"): "f", 1.5: "g"},
        '{"1": "a", "[1, \\"x\\"]": "b", "null": "c", "2024-05-06T07:08:00": "d", "red": "e", '
        '"[\\"a\\", \\"b\\"]": "f", "1.5": "g"}',
    ),
    "keys of one text": (lambda: {1: "a", "1": "b"}, '[["1", "a"], ["1", "b"]]'),
    "not finite": (lambda: [float("nan"), float("inf"), {"a": -float("inf")}], '[null, null, {"a": null}]'),
    "generator": (lambda: (word for word in WORDS[:2]), '["tea", "rice"]'),
    "iterators": (
        lambda: {"map": map(str, [1]), "zip": zip([1], "a", strict=True)}, '{"map": ["1"], "zip": [[1, "a"]]}'
    ),
    "range": (lambda: [range(3), collections.deque([1])], "[[0, 1, 2], [1]]"),
    "mappings": (
        lambda: [collections.Counter("aab"), types.MappingProxyType({"a": 1}), collections.UserDict(a=1)],
        '[{"a": 2, "b": 1}, {"a": 1}, {"a": 1}]',
    ),
    "namespace": (lambda: types.SimpleNamespace(words=set(WORDS)), f'{{"words": {SORTED}}}'),
    "row of a database": (lambda: [row()], '[{"a": 1, "b": "x"}]'),
    "array": (lambda: array.array("i", [1, 2]), "[1, 2]"),
    "numpy scalars": (lambda: [np.int64(3), np.float64(0.5), np.bool_(True), np.str_("x")], '[3, 0.5, true, "x"]'),
    "numpy arrays": (
        lambda: {"a": np.array([[1, 2]]), "b": np.array([0.5, np.nan])}, '{"a": [[1, 2]], "b": [0.5, null]}'
    ),
    "numpy times": (lambda: np.array(["2024-05-06"], dtype="datetime64[D]"), '["2024-05-06"]'),
    "numpy nanoseconds": (lambda: [np.datetime64("2024-05-06", "ns")], '["2024-05-06T00:00:00.000000000"]'),
    "numpy objects": (lambda: np.array([{"b", "a"}, None], dtype=object), '[["a", "b"], null]'),
    "tensor": (lambda: {"loss": torch.tensor([0.5, float("nan")])}, '{"loss": [0.5, null]}'),
    "parameter": (lambda: torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)), "[1.0, 1.0]"),
    "table": (
        lambda: table(),
        '[{"a": 1, "b": "x", "t": "2024-05-06T00:00:00"}, {"a": 2, "b": null, "t": null}]',
    ),
    "table with an index": (
        lambda: table(index=["r", "s"])[["a"]],
        '{"index": ["r", "s"], "columns": ["a"], "data": [[1], [2]]}',
    ),
    "table with one name twice": (
        lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]),
        '{"index": [0], "columns": ["a", "a"], "data": [[1, 2]]}',
    ),
    "series": (lambda: [pd.Series([1.5, None]), pd.Series({"a": 1})], '[[1.5, null], {"a": 1}]'),
    "pandas scalars": (lambda: [pd.Timestamp("2024-05-06"), pd.NaT, pd.NA], '["2024-05-06T00:00:00", null, null]'),
    "object with a text": (lambda: {"a": Spoken()}, '{"a": "spoken"}'),
    "exception": (lambda: [ValueError("odd")], '["ValueError: odd"]'),
    "nothing": (lambda: None, "null"),
}  # fmt: skip
ADDRESSES = {
    "object": object,
    "function": lambda: lambda: 1,
    "object inside": lambda: {"a": [Basket(object(), frozenset())]},
    "thread": lambda: types.SimpleNamespace(a=Threadlike()),
}


class Threadlike:
    """An object whose representation contains its address."""

    def __repr__(self):
        return f"<Threadlike {id(self)}>"


def give(name: str) -> object:
    """Return a value."""
    return {**{key: make for key, (make, _) in VALUES.items()}, **ADDRESSES}[name]()


async def give_later(name: str) -> object:
    """Return a value from a coroutine."""
    return give(name)
