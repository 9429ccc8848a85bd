"""Judge requests with an answer cache, strict parsing and retries.

Note: Prose with a brace in it is not an answer. If a judge never returns a valid answer, the score is unknown.
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
from whetstone.rewards.judges.judge_log import record_judgment
from whetstone.rewards.judges.protocol import Meter, Question

_LATEST = 20_000
"""Maximum number of answers that are cached in memory."""


class AnswerCache:
    """Cache of judge answers by judge and question: the latest in memory, all of them on disk.

    Args:
        path: SQLite file; None keeps answers in memory only.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.in_flight: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        """Pending answers by key."""
        self._connection: sqlite3.Connection | None = None
        self._latest: OrderedDict[str, Mapping[str, Any]] = OrderedDict()

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the cached answer of a key; None if there is none.

        Raises:
            RunDirectoryError: If the stored answer or the file is damaged.
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
            raise RunDirectoryError(f"{problem}; delete the row or the file, and the judge is asked again") from None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Store an answer in memory and, if there is a file, on disk.

        Raises:
            RunDirectoryError: If the file is damaged.
        """
        self._latest[key] = answer
        if len(self._latest) > _LATEST:
            self._latest.popitem(last=False)
        with self._reading() as connection:
            if connection is not None:
                with connection:
                    connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, json.dumps(answer)))

    def close(self) -> None:
        """Close the cache file, if it is open."""
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
            raise RunDirectoryError(
                f"{self.path}: not a cache of judge answers ({error}); move the file away"
            ) from None

    def _open(self) -> sqlite3.Connection | None:
        if self.path is not None and self._connection is None:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self.path, timeout=30.0, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)")
        return self._connection


async def ask_judge(
    question: Question,
    request: Callable[[int], Awaitable[str]],
    *,
    who: str,
    cache: AnswerCache,
    meter: Meter,
    tries: int,
) -> Mapping[str, Any]:
    """Return the answer to a question: from the cache, from a pending request, or from the judge with retries.

    Args:
        question: Question to the judge.
        request: Function of the attempt's index, from 0, that returns the judge's reply as text.
        who: Identity of the judge: everything that determines its answers; part of the cache key.
        cache: Cache of answers.
        meter: Usage counters to update.
        tries: Maximum number of attempts.

    Raises:
        InfrastructureError: If the judge returns no valid answer.
    """
    meter.requests += 1
    key = f"{who}\n{question.key}"
    cached = cache.get(key)
    if cached is not None:
        meter.cached += 1
        record_judgment(question, cached)
        return cached
    while key in cache.in_flight:  # another caller waits for the same answer
        answer = await asyncio.shield(cache.in_flight[key])
        meter.cached += 1
        record_judgment(question, answer)
        return answer
    future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
    cache.in_flight[key] = future
    try:
        wrong = ""
        for attempt in range(tries):
            meter.retries += attempt > 0
            answer_given, wrong = read_answer(await request(attempt), question.shape)
            if answer_given is not None:
                cache.put(key, answer_given)
                future.set_result(answer_given)
                record_judgment(question, answer_given)
                return answer_given
        raise InfrastructureError(f"the judge returned no valid answer in {tries} attempts: {wrong}")
    except BaseException as failure:
        meter.failed += 1
        error = failure if isinstance(failure, Exception) else InfrastructureError("the judge request was canceled")
        future.set_exception(error)
        future.exception()  # mark as retrieved, even if no other caller waits for it
        raise
    finally:
        del cache.in_flight[key]


def read_answer(text: str, shape: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    """Parse a judge's reply as JSON and validate it; only a code fence around the object is removed.

    Returns:
        (answer, "") or (None, problem).
    """
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```"):
        bare = bare.removesuffix("```").removeprefix("```json").removeprefix("```").strip()
    try:
        answer = parse_json(bare)
        jsonschema.validate(answer, dict(shape))
    except ValueError as error:
        return None, f"{text[:80]!r} is not JSON: {describe_damage(error)}"
    except jsonschema.ValidationError as error:
        return None, f"{error.message[:120]}"
    return answer, ""
