"""Which trajectories are wanted, in which order? A question as a page asks it, as SQL.

Easy to get wrong: what is asked comes from an address anybody may write. Names of columns are looked up, never pasted;
values are bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from whetstone.chat.api.asked import RefusedError
from whetstone.errors import did_you_mean

SORTABLE = ("step", "reward", "success", "turns", "calls", "tokens", "seconds", "version", "task", "ended", "part")
_COMPONENT = "component:"
_HOLDS = "{} IN (SELECT n.number FROM names n WHERE instr({}, ?))"
"""A column that holds the number of a list of names, and the list."""
_BY_NAME = ("task", "ended", "part")
MOST_ROWS = 200
_NUMBERS = {"from_step": int, "to_step": int, "above": float, "below": float, "offset": int, "limit": int}
_WHOLE, _REAL = re.compile("-?[0-9]{1,40}"), re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A question. What is empty or None is not asked about."""

    part: str = ""
    """`training`, or `evaluation NAME`."""
    from_step: int | None = None
    to_step: int | None = None
    task: str = ""
    """The id of a task."""
    kind: str = ""
    ended: str = ""
    tool: str = ""
    """The name of a tool that was called."""
    outcome: str = ""
    """`solved`, `unsolved`, `unscored`, or what came of a call: `tool_error`, `invalid_arguments`, …"""
    mark: str = ""
    measure: str = "reward"
    """What `above` and `below` are of: `reward`, or `component:NAME`."""
    above: float | None = None
    below: float | None = None
    text: str = ""
    """Words that are all said or called; the last may be the beginning of one."""
    sort: str = "step"
    """`step`, `reward`, …, or `component:NAME`."""
    descending: bool = True
    offset: int = 0
    limit: int = 50

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Wanted:
        """The question of an address.

        Raises:
            RefusedError: Something in it is none.
        """
        known = {field.name for field in fields(cls)}
        said: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise RefusedError(f'no filter "{name[:80]}"{did_you_mean(name, known)}')
            if value == "":
                continue
            if name == "descending":
                said[name] = value in ("1", "true")
            elif name in _NUMBERS:
                said[name] = _number(name, value)
            else:
                said[name] = value[:2000]
        wanted = cls(**said)
        if not 0 <= wanted.offset < 2**40 or not 0 < wanted.limit <= MOST_ROWS:
            raise RefusedError(f"offset is 0 or more, limit 1 to {MOST_ROWS}")
        return wanted

    def condition(self, components: Mapping[str, str]) -> tuple[str, list[Any]]:
        """(SQL, what is bound in it)

        Args:
            components: By name, the column a part of the reward is in.

        Raises:
            RefusedError: It asks about a component there is not.
        """
        asked: list[str] = []
        bound: list[Any] = []

        def also(sql: str, *values: Any) -> None:
            asked.append(sql)
            bound.extend(values)

        for name in ("part", "task", "kind", "ended"):
            if getattr(self, name):
                also(f"t.{name} = (SELECT n.number FROM names n WHERE n.name = ?)", getattr(self, name))
        if self.from_step is not None:
            also("step >= ?", self.from_step)
        if self.to_step is not None:
            also("step <= ?", self.to_step)
        if self.tool:
            also(_HOLDS.format("t.tools", "n.name"), f"|{self.tool}|")
        if self.mark:
            also(_HOLDS.format("t.marks", "' ' || n.name || ' '"), f" {self.mark} ")
        if self.outcome in ("solved", "unsolved"):
            also("success = ?", int(self.outcome == "solved"))
        elif self.outcome == "unscored":
            also("reward IS NULL")
        elif self.outcome:
            also(_HOLDS.format("t.outcomes", "n.name"), f"|{self.outcome}|")
        column = "reward" if self.measure == "reward" else _component(self.measure, components)
        if self.above is not None:
            also(f"{column} >= ?", self.above)
        if self.below is not None:
            also(f"{column} <= ?", self.below)
        if self.text.strip():
            also("t.number IN (SELECT rowid FROM texts WHERE texts MATCH ?)", _matched(self.text))
        return " AND ".join(asked) or "1", bound

    def order(self, components: Mapping[str, str]) -> str:
        """SQL behind ORDER BY: what is unknown comes last.

        Raises:
            RefusedError: There is nothing of this name to sort by.
        """
        if self.sort not in SORTABLE and not self.sort.startswith(_COMPONENT):
            raise RefusedError(f'cannot sort by "{self.sort[:80]}"{did_you_mean(self.sort, SORTABLE)}')
        column = self.sort if self.sort in SORTABLE else _component(self.sort, components)
        if column in _BY_NAME:
            column = f"(SELECT n.name FROM names n WHERE n.number = t.{column})"
        # below all else to SQLite, what is unknown comes last by itself where the order descends, and an index serves
        return f"{column} DESC, t.number DESC" if self.descending else f"{column} ASC NULLS LAST, t.number ASC"


def _component(name: str, components: Mapping[str, str]) -> str:
    name = name.removeprefix(_COMPONENT)
    if name not in components:
        raise RefusedError(f'no component "{name[:80]}" in rewards{did_you_mean(name, components)}')
    return components[name]


def _matched(text: str) -> str:
    """What FTS5 is asked: each word in quotes, so that nothing in it is an operator; the last as a beginning."""
    words = [re.sub(r'["\x00]', " ", word) for word in text.split()]
    words = [word for word in words if re.search(r"\w", word)]
    if not words:
        raise RefusedError("text: words are searched for, and there is no letter or digit in it")
    return " ".join(f'"{word}"' for word in words) + " *"


def _number(name: str, value: str) -> float:
    kind = _NUMBERS[name]
    if not (_WHOLE if kind is int else _REAL).fullmatch(value) or abs(number := kind(value)) > 1e300:
        raise RefusedError(f'{name}: "{value[:80]}" is no number in ASCII digits')
    return number if isinstance(number, float) else max(-(2**62), min(number, 2**62))
