"""How are tasks read from a file of JSON lines? One object a line, each checked, mistakes named by file and line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from whetstone.errors import TaskError, did_you_mean
from whetstone.tasks.listed import ListedTasks
from whetstone.tasks.splits import split
from whetstone.trajectory import Task

OnBadTask = Literal["error", "skip"]
_LONGEST_LINE = 64 << 20


def read_tasks(
    path: Path, parse: Callable[[Mapping[str, Any], int], Task], *, on_bad_task: OnBadTask = "error"
) -> tuple[list[Task], int]:
    """(tasks, how many lines were skipped). Blank lines are neither.

    Args:
        parse: Makes a task of one object and its line number; raises ValueError or KeyError where it cannot.
        on_bad_task: `error` stops at the first bad line; `skip` leaves it out and counts it.

    Raises:
        TaskError: No such file, nothing in it, or a bad line; the message names file and line.
    """
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*.jsonl")] if path.parent.is_dir() else []
        raise TaskError(f"{path}: no such task file{did_you_mean(path.name, beside)}")
    tasks: list[Task] = []
    skipped = 0
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), start=1):
            if len(line) > _LONGEST_LINE:
                raise TaskError(f"{path}:{number}  longer than {_LONGEST_LINE} bytes, which no task is")
            if not line.strip():
                continue
            try:
                tasks.append(_parsed(line, number, parse))
            except ValueError as error:
                if on_bad_task == "error":
                    raise TaskError(f"{path}:{number}  {error}; `on_bad_task: skip` leaves such lines out") from None
                skipped += 1
    if not tasks:
        raise TaskError(f"{path}: no tasks in it" + (f" ({skipped} bad lines skipped)" if skipped else ""))
    return tasks, skipped


def json_row(line: bytes | str, *, what: str) -> dict[str, Any]:
    """The object in a line of JSON.

    Args:
        what: It is called, in a message.

    Raises:
        ValueError: It holds none, or one with a number that is none or a key that is there twice.
    """
    try:
        row = json.loads(line, parse_constant=_no_json, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError("not JSON: too deep") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"{what} is a JSON object, got {type(row).__name__}")
    return row


def _parsed(line: bytes, number: int, parse: Callable[[Mapping[str, Any], int], Task]) -> Task:
    row = json_row(line, what="a task")
    try:
        return parse(row, number)
    except KeyError as error:
        raise ValueError(f"the key {error} is missing{did_you_mean(str(error.args[0]), row)}") from None


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is not a number there")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f'the key "{twice}" is there twice')
    return found


class Jsonl(ListedTasks):
    """Tasks of your own: `{"prompt": …, "answer": …}` a line, optionally `id` and `tags`. Every other key is for the
    verifier: it stands in `task.private` under its name, as `answer` does, and so does what a `private` object holds.

    Args:
        path: The file.
        seed: The order in which training tasks come.
        held_out_fraction: Fraction of tasks kept for evaluation, at least one and never all. Which they are is
            decided by their ids, whatever the seed; tasks of the same words are on the same side.
        on_bad_task: `error`, or `skip` to leave bad lines out and count them.

    Raises:
        TaskError: The file is missing, empty or has a bad line, two tasks share an id, or there is only one task.
        OptionError: The share is not between 0 and 1.
    """

    def __init__(
        self, *, path: str, seed: int = 0, held_out_fraction: float = 0.1, on_bad_task: OnBadTask = "error"
    ) -> None:
        tasks, self.skipped = read_tasks(Path(path), _parse, on_bad_task=on_bad_task)
        super().__init__(*split(tasks, held_out_fraction, where=path), seed=seed)


_KNOWN = ("prompt", "answer", "id", "tags", "private")


def _parse(row: Mapping[str, Any], number: int) -> Task:
    for key in row:
        near = difflib.get_close_matches(key, [name for name in _KNOWN if name not in row], n=1, cutoff=0.75)
        if near and key not in _KNOWN:
            raise ValueError(f'"{key}" is no key of a task{did_you_mean(key, near)} (else put it under `private`)')
    prompt, tags, private = row["prompt"], row.get("tags", {}), row.get("private", {})
    if not isinstance(prompt, str) or not isinstance(tags, dict) or not isinstance(private, dict):
        raise ValueError("`prompt` is text, `tags` and `private` are objects")
    if not prompt.isascii():
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise ValueError("`prompt` is no valid Unicode: it holds half of a pair") from None
    for tag, value in tags.items():
        if isinstance(value, dict | list) or value is None:
            raise ValueError(f"the tag {tag} is a text or a number, got {json.dumps(value)}")
    known = {**private, **{key: value for key, value in row.items() if key not in ("prompt", "id", "tags", "private")}}
    if not known:
        row["answer"]  # without anything to judge by there is nothing to learn
    return Task(str(row.get("id", number)), prompt, known, {tag: str(value) for tag, value in tags.items()})
