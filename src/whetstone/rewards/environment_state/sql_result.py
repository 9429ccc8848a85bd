"""SQL execution accuracy: compares the rows of the agent's query with those of the gold query.

Rows are compared as a multiset, or in order if the gold query orders them. Both queries run on the same SQLite file,
opened read-only in a separate process (`whetstone.tools.database`).

Note: A query that fails is a wrong answer. A gold query that fails is a broken task, and the score is unknown.
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
from whetstone.tools.database import DatabaseOrigin, DatabaseProcess
from whetstone.trajectory import Score, Task, Trajectory

_FENCED = re.compile(r"```(?:sql)?\s*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_ORDERED = re.compile(r"\border\s+by\b[^()]*$", re.IGNORECASE)


async def sql_result(
    trajectory: Trajectory, task: Task, *, tool: str = "sql", seconds: float = 5.0, max_rows: int = 100_000
) -> Score:
    """Return 1 if the agent's query gives the same rows as `task.private["query"]`, else 0.

    Both run on the database `task.private["database"]`. The agent's query is the last fenced block of the final answer,
    or the full answer if it starts like a query, or that of the last successful call of `tool`.

    Args:
        tool: Name of the tool whose calls are queries.
        seconds: Timeout of a query, in seconds.
        max_rows: Maximum number of rows; a larger result is wrong.

    Raises:
        ValueError: If the gold query does not run, or its database cannot be opened, so the task is broken.
        FileNotFoundError: If the database does not exist.
        InfrastructureError: If no process can be started.
    """
    query = _find_query(trajectory, tool)
    database, wanted = Path(str(task.private["database"])), str(task.private["query"])
    process = DatabaseProcess(DatabaseOrigin("sqlite", path=_existing_path(database)))
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
    """Return whether two query results have equal rows; numbers are compared to nine digits, column names are ignored.

    With `ordered`, the order of the rows counts.

    >>> same_rows([(1, "a"), (2, None)], [(2.0, None), (1, "a")], ordered=False)
    True
    """
    rows, other_rows = [[_plain(x) for x in row] for row in one], [[_plain(x) for x in row] for row in other]
    if ordered:
        return rows == other_rows
    return Counter(map(tuple, rows)) == Counter(map(tuple, other_rows))


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


def _find_query(trajectory: Trajectory, tool: str) -> str | None:
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
                arguments = json.loads(call.arguments)
                return str(arguments.get("query", arguments.get("sql", next(iter(arguments.values()), ""))))
    return None


def _existing_path(database: Path) -> str:
    if not database.is_file():
        raise FileNotFoundError(f"{database}: no such database file")
    return str(database)


async def _rows(
    database: DatabaseProcess, query: str, seconds: float, max_rows: int
) -> tuple[list[Sequence[Any]] | None, str]:
    """Run a query; return (rows, "") or (None, reason of the failure)."""
    try:
        result = await database.fetch_rows(query, most=max_rows + 1, seconds=seconds, cell_characters=0)
    except ToolError as error:
        return None, str(error)
    if not result.columns:
        return None, "the query returns no columns"
    return (list(result.rows), "") if len(result.rows) <= max_rows else (None, f"more than {max_rows} rows")
