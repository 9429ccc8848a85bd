"""Queries for trajectories: filters and order from the address of a page, converted to SQL.

Note:
    The address is untrusted. Column names are looked up, never inserted; values are bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from whetstone.chat.api.requests import RefusedError
from whetstone.errors import did_you_mean

SORTABLE = ("step", "reward", "success", "turns", "calls", "tokens", "seconds", "version", "task", "ended", "part")
_COMPONENT = "component:"
_HOLDS = "{} IN (SELECT n.number FROM names n WHERE instr({}, ?))"
"""Condition on a column with the number of a list of names, and the list."""
_BY_NAME = ("task", "ended", "part")
MAX_ROWS = 200
_NUMBERS = {"from_step": int, "to_step": int, "above": float, "below": float, "offset": int, "limit": int}
_WHOLE, _REAL = re.compile("-?[0-9]{1,40}"), re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class TrajectoryQuery:
    """Filters, order and page of a query for trajectories. An empty or None field does not filter."""

    part: str = ""
    """`training`, or `evaluation NAME`."""
    from_step: int | None = None
    """First step."""
    to_step: int | None = None
    """Last step."""
    task: str = ""
    """Id of a task."""
    kind: str = ""
    """Kind of task, see `task_kind`."""
    ended: str = ""
    """End reason."""
    tool: str = ""
    """Name of a called tool."""
    outcome: str = ""
    """`solved`, `unsolved`, `unscored`, or the outcome of a call: `tool_error`, `invalid_arguments`, …"""
    mark: str = ""
    """Mark of a trajectory, such as `relabelled`."""
    measure: str = "reward"
    """Value that `above` and `below` limit: `reward`, or `component:NAME`."""
    above: float | None = None
    """Minimum of `measure`."""
    below: float | None = None
    """Maximum of `measure`."""
    text: str = ""
    """Words that all occur in messages or calls; the last may be a prefix."""
    sort: str = "step"
    """`step`, `reward`, …, or `component:NAME`."""
    descending: bool = True
    """Whether the largest values come first."""
    offset: int = 0
    """Number of rows to skip."""
    limit: int = 50
    """Maximum number of rows."""

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> TrajectoryQuery:
        """Parse the parameters of a query string.

        Raises:
            RefusedError: A filter is unknown, or its value is invalid.
        """
        known = {field.name for field in fields(cls)}
        filters: dict[str, Any] = {}
        for name, value in parameters.items():
            if name not in known:
                raise RefusedError(f'no filter "{name[:80]}"{did_you_mean(name, known)}')
            if value == "":
                continue
            if name == "descending":
                filters[name] = value in ("1", "true")
            elif name in _NUMBERS:
                filters[name] = _number(name, value)
            else:
                filters[name] = value[:2000]
        query = cls(**filters)
        if not 0 <= query.offset < 2**40 or not 0 < query.limit <= MAX_ROWS:
            raise RefusedError(f"offset must be at least 0, and limit from 1 to {MAX_ROWS}")
        return query

    def sql_condition(self, components: Mapping[str, str]) -> tuple[str, list[Any]]:
        """Build the SQL condition of the filters: (text after WHERE, bound values).

        Args:
            components: Column of each component of the reward, by name.

        Raises:
            RefusedError: A filter names an unknown reward component.
        """
        conditions: list[str] = []
        bound: list[Any] = []

        def add(sql: str, *values: Any) -> None:
            conditions.append(sql)
            bound.extend(values)

        for name in ("part", "task", "kind", "ended"):
            if getattr(self, name):
                add(f"t.{name} = (SELECT n.number FROM names n WHERE n.name = ?)", getattr(self, name))
        if self.from_step is not None:
            add("step >= ?", self.from_step)
        if self.to_step is not None:
            add("step <= ?", self.to_step)
        if self.tool:
            add(_HOLDS.format("t.tools", "n.name"), f"|{self.tool}|")
        if self.mark:
            add(_HOLDS.format("t.marks", "' ' || n.name || ' '"), f" {self.mark} ")
        if self.outcome in ("solved", "unsolved"):
            add("success = ?", int(self.outcome == "solved"))
        elif self.outcome == "unscored":
            add("reward IS NULL")
        elif self.outcome:
            add(_HOLDS.format("t.outcomes", "n.name"), f"|{self.outcome}|")
        column = "reward" if self.measure == "reward" else _component(self.measure, components)
        if self.above is not None:
            add(f"{column} >= ?", self.above)
        if self.below is not None:
            add(f"{column} <= ?", self.below)
        if self.text.strip():
            add("t.number IN (SELECT rowid FROM texts WHERE texts MATCH ?)", _fts_query(self.text))
        return " AND ".join(conditions) or "1", bound

    def build_order_clause(self, components: Mapping[str, str]) -> str:
        """Build the SQL text after ORDER BY; rows without a value are last.

        Args:
            components: Column of each reward component, by name.

        Raises:
            RefusedError: `sort` names no column.
        """
        if self.sort not in SORTABLE and not self.sort.startswith(_COMPONENT):
            raise RefusedError(f'cannot sort by "{self.sort[:80]}"{did_you_mean(self.sort, SORTABLE)}')
        column = self.sort if self.sort in SORTABLE else _component(self.sort, components)
        if column in _BY_NAME:
            column = f"(SELECT n.name FROM names n WHERE n.number = t.{column})"
        # SQLite sorts NULL below all values, so that it is last in descending order and an index can be used
        return f"{column} DESC, t.number DESC" if self.descending else f"{column} ASC NULLS LAST, t.number ASC"


def _component(name: str, components: Mapping[str, str]) -> str:
    name = name.removeprefix(_COMPONENT)
    if name not in components:
        raise RefusedError(f'no component "{name[:80]}" in rewards{did_you_mean(name, components)}')
    return components[name]


def _fts_query(text: str) -> str:
    """Build an FTS5 query: each word is quoted, so that no operator is interpreted, and the last is a prefix."""
    words = [re.sub(r'["\x00]', " ", word) for word in text.split()]
    words = [word for word in words if re.search(r"\w", word)]
    if not words:
        raise RefusedError("text: must contain a letter or digit")
    return " ".join(f'"{word}"' for word in words) + " *"


def _number(name: str, value: str) -> float:
    kind = _NUMBERS[name]
    if not (_WHOLE if kind is int else _REAL).fullmatch(value) or abs(number := kind(value)) > 1e300:
        raise RefusedError(f'{name}: "{value[:80]}" is not a number in ASCII digits')
    return number if isinstance(number, float) else max(-(2**62), min(number, 2**62))
