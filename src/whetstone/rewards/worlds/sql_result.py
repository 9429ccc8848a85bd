"""Does a query give the rows the right one gives? As a bag of rows, or in order where the right one orders them.

Both run on the same SQLite file, opened for reading in a process of its own (`whetstone.tools.database`).

Easy to get wrong: a query that fails is a wrong answer; a right query that fails is a broken task, and says nothing of
the agent.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whetstone.errors import DatabaseError, ToolError
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.tools.database import DatabaseProcess, Origin
from whetstone.trajectory import Score, Task, Trajectory

_FENCED = re.compile(r"```(?:sql)?\s*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_ORDERED = re.compile(r"\border\s+by\b[^()]*$", re.IGNORECASE)


async def sql_result(
    trajectory: Trajectory, task: Task, *, tool: str = "sql", seconds: float = 5.0, max_rows: int = 100_000
) -> Score:
    """1 where the agent's query gives the rows of `task.private["query"]` on `task.private["database"]`, else 0.

    The agent's query is in the last fenced block of the final answer, or all of it where it begins as one, or else that
    of the last call of `tool` that ran.

    Args:
        tool: Whose calls are queries.
        seconds: How long each query may run.
        max_rows: Maximum number of rows; a larger result is wrong.

    Raises:
        ValueError: The right query does not run, or its database cannot be opened, so the task is broken.
        FileNotFoundError: There is no such database.
        InfrastructureError: There is no process for it.
    """
    query = _query_of(trajectory, tool)
    database, wanted = Path(str(task.private["database"])), str(task.private["query"])
    process = DatabaseProcess(Origin("sqlite", path=_there(database)))
    try:
        await process.open()
        gold, failure = await _rows(process, wanted, seconds, max_rows)
        if gold is None:
            raise ValueError(f"the task's own query does not run: {failure}")
        rows = None if query is None else (await _rows(process, query, seconds, max_rows))[0]
    except DatabaseError as error:
        raise ValueError(f"the task's database cannot be opened: {error}") from None
    finally:
        await process.close()
    ordered = _ORDERED.search(wanted.strip().rstrip(";")) is not None
    right = rows is not None and await asyncio.to_thread(same_rows, rows, gold, ordered=ordered)
    return Score(float(right), {"correct": float(right), "ran": float(rows is not None)}, success=right)


def same_rows(one: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]], *, ordered: bool) -> bool:
    """Whether two results are the same; numbers to nine digits, names of columns do not count.

    >>> same_rows([(1, "a"), (2, None)], [(2.0, None), (1, "a")], ordered=False)
    True
    """
    ours, theirs = [[_plain(x) for x in row] for row in one], [[_plain(x) for x in row] for row in other]
    if ordered:
        return ours == theirs
    return Counter(map(tuple, ours)) == Counter(map(tuple, theirs))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return ("number", str(value))
        return ("number", float(f"{value:.9g}"))
    return (
        ("number", float(f"{value:.9g}"))
        if isinstance(value, int) and abs(value) < 2**53
        else (type(value).__name__, value)
    )


def _query_of(trajectory: Trajectory, tool: str) -> str | None:
    answer = final_answer(trajectory)
    if answer is not None:
        blocks = _FENCED.findall(answer)
        if blocks:
            return str(blocks[-1])
        if re.match(r"\s*(select|with)\b", answer, re.IGNORECASE):
            return answer
    for turn in reversed(trajectory.turns):
        for call, record in reversed(list(zip(turn.message.tool_calls, turn.calls, strict=False))):
            if call.name == tool and record.outcome == "ok":
                given = json.loads(call.arguments)
                return str(given.get("query", given.get("sql", next(iter(given.values()), ""))))
    return None


def _there(database: Path) -> str:
    if not database.is_file():
        raise FileNotFoundError(f"{database}: no such database")
    return str(database)


async def _rows(
    database: DatabaseProcess, query: str, seconds: float, most: int
) -> tuple[list[Sequence[Any]] | None, str]:
    """(the rows, or None where it does not run; why)"""
    try:
        result = await database.rows(query, most=most + 1, seconds=seconds, cell_characters=0)
    except ToolError as error:
        return None, str(error)
    if not result.columns:
        return None, "it asks for nothing"
    return (list(result.rows), "") if len(result.rows) <= most else (None, f"more than {most} rows")
