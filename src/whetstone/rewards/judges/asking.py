"""How is a judge's answer made certain? Kept by content, read strictly, asked for again, and never made up.

Easy to get wrong: prose with a brace in it is no answer, and a judge that never gives one says nothing about the agent.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema

from whetstone.errors import InfrastructureError, RunDirectoryError
from whetstone.json_lines import UNREADABLE, describe_damage, parse_json, parse_object
from whetstone.rewards.judges.heard import hear
from whetstone.rewards.judges.protocol import Meter, Question

_LATEST = 20_000
"""Answers in memory."""


class Kept:
    """Answers by what decides them: the latest in memory, so that a reward that is asked again asks nobody, and all of
    them on disk.

    Args:
        path: A file; None keeps them in memory alone.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._latest: OrderedDict[str, Mapping[str, Any]] = OrderedDict()

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the answer that was kept, or None.

        Raises:
            RunDirectoryError: It is damaged.
        """
        if key in self._latest:
            return self._latest[key]
        with self._reading() as connection:
            if connection is None:
                return None
            row = connection.execute("SELECT rowid, CAST(answer AS BLOB) FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        try:
            return parse_object(row[1])
        except UNREADABLE as error:
            problem = f"{self.path}: row {row[0]} of answers is damaged: {describe_damage(error)}"
            raise RunDirectoryError(f"{problem}; delete the row, or the file, and the judge is asked again") from None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer.

        Raises:
            RunDirectoryError: The file is damaged.
        """
        self._latest[key] = answer
        if len(self._latest) > _LATEST:
            self._latest.popitem(last=False)
        with self._reading() as connection:
            if connection is not None:
                with connection:
                    connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, json.dumps(answer)))

    def close(self) -> None:
        """Let go of the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        try:
            yield self._open()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
                raise
            raise RunDirectoryError(f"{self.path}: holds no answers of judges ({error}); move the file away") from None

    def _open(self) -> sqlite3.Connection | None:
        if self.path is not None and self._connection is None:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self.path, timeout=30.0, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)")
        return self._connection


async def certain(
    question: Question,
    said: Callable[[int], Awaitable[str]],
    *,
    who: str,
    kept: Kept,
    under_way: dict[str, asyncio.Future[Mapping[str, Any]]],
    meter: Meter,
    tries: int,
) -> Mapping[str, Any]:
    """The answer to a question: kept, being asked already, or asked for until it has the shape it should.

    Args:
        said: What the judge says, the n-th time he is asked.
        who: Everything about the judge that decides his answers; part of what they are kept by.

    Raises:
        InfrastructureError: He never gave one.
    """
    answer = await _certain(question, said, who=who, kept=kept, under_way=under_way, meter=meter, tries=tries)
    hear(question, answer)
    return answer


async def _certain(
    question: Question,
    said: Callable[[int], Awaitable[str]],
    *,
    who: str,
    kept: Kept,
    under_way: dict[str, asyncio.Future[Mapping[str, Any]]],
    meter: Meter,
    tries: int,
) -> Mapping[str, Any]:
    meter.requests += 1
    key = f"{who}\n{question.key}"
    found = kept.get(key)
    if found is not None:
        meter.cached += 1
        return found
    while key in under_way:  # somebody asks the same right now
        answer = await asyncio.shield(under_way[key])
        meter.cached += 1
        return answer
    future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
    under_way[key] = future
    try:
        wrong = ""
        for attempt in range(tries):
            meter.retries += attempt > 0
            given, wrong = read_answer(await said(attempt), question.shape)
            if given is not None:
                kept.put(key, given)
                future.set_result(given)
                return given
        raise InfrastructureError(f"the judge gave no answer of the shape asked for, {tries} times: {wrong}")
    except BaseException as failure:
        meter.failed += 1
        error = failure if isinstance(failure, Exception) else InfrastructureError("the judge was not waited for")
        future.set_exception(error)
        future.exception()  # seen, whether anybody else waits for it or not
        raise
    finally:
        del under_way[key]


def read_answer(text: str, shape: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    """(the answer in a text, or None; what is wrong with it). A fence around the object is taken off, nothing else."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```"):
        bare = bare.removesuffix("```").removeprefix("```json").removeprefix("```").strip()
    try:
        answer = parse_json(bare)
        jsonschema.validate(answer, dict(shape))
    except ValueError as error:
        return None, f"{text[:80]!r} is no JSON: {describe_damage(error)}"
    except jsonschema.ValidationError as error:
        return None, f"{error.message[:120]}"
    return answer, ""
