"""Search for evaluation tasks in the training data of a recipe.

Which tasks are equal:
- Tasks with the same id.
- Tasks with the same prompt, ignoring case, white space and final punctuation. If both have private values, these must
  be equal too, because one question about two databases is two tasks. For tasks from a list, only the answers must be
  equal, because lists can have other columns.
- A row of a data file contains a task if it contains its prompt, or thirteen of its words in a row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import RunComponents
from whetstone.data.decontamination import WORDS, find_overlaps, normalize_prompt
from whetstone.data.row_readers import InvalidRow, read_rows
from whetstone.data.sensitive import collect_texts
from whetstone.recipe import (
    DataSettings,
    DistillationSettings,
    ReinforcementSettings,
    Resolved,
    SamplingSettings,
    SupervisedSettings,
)
from whetstone.recipe.stage_settings import get_data
from whetstone.strict_json import to_json
from whetstone.tasks import Source
from whetstone.tasks.protocol import Finite
from whetstone.trajectory import Task

_MAX_TASKS = 10_000
"""Maximum number of training tasks of a list to compare."""
_MAX_GENERATED, _MAX_EVALUATED = 50, 100
"""Maximum number of training and of evaluation tasks of a generator, which takes milliseconds per task."""
_ANSWERS = ("answer", "answers", "solution", "target", "label", "expected", "reference")
"""Private values that identify a task, regardless of the other ones."""
_MAX_CHARACTERS = 10_000_000
"""Maximum number of characters of a data file to search."""
_EXAMPLES = 3


def find_overlap(
    assembly: RunComponents, resolved: Resolved, *, evaluated: RunComponents | None = None
) -> list[dict[str, Any]]:
    """Return one entry per place of the recipe whose data contain evaluation tasks.

    An entry has the recipe key (`where`), the number of evaluation tasks that were found (`count`) and compared
    (`held_out`), a description of the searched data (`searched`), the numbers by kind of match (`matches`), some
    `examples`, and a summary line (`sentence`).

    Args:
        assembly: Components of the run; `check_data` has read the stored episodes.
        resolved: Recipe with its stages.
        evaluated: Components with the evaluation tasks, those of a suite; None: `assembly`.
    """
    evaluated = evaluated or assembly
    stored, files = assembly.stored_reader.tasks, dict(_files(resolved))
    is_list = isinstance(evaluated.source, Finite)
    count = evaluated.resolved.recipe.evaluation.episodes
    held_out = evaluated.source.held_out(count if is_list or stored or files else min(count, _MAX_EVALUATED))
    searched = {key: (f"{len(tasks)} training tasks", tasks) for key, tasks in _training_tasks(assembly, resolved)}
    searched |= {key: (f"{len(tasks)} stored tasks", tasks) for key, tasks in stored.items()}
    entries = [
        _entry(key, what, _repeated(held_out, tasks, is_list=is_list), held_out)
        for key, (what, tasks) in searched.items()
    ]
    for key, settings in files.items():
        if key not in stored:
            rows, matches = _contained(settings, held_out, assembly.leaking_rows.get(key, frozenset()))
            entries.append(_entry(key, f"{rows} rows of {settings.path}", matches, held_out))
    return [entry for entry in entries if entry["count"]]


_Matches = dict[str, tuple[str, str]]
"""Id of an evaluation task → (kind of match, id of the training task or row)."""


def _entry(where: str, searched: str, matches: _Matches, held_out: Sequence[Task]) -> dict[str, Any]:
    by_kind = Counter(kind for kind, _ in matches.values())
    examples = [f"{task} ({place})" for task, (_, place) in list(matches.items())[:_EXAMPLES]]
    kinds = ", ".join(f"{count} by {kind}" for kind, count in by_kind.items())
    sentence = (
        f"{where}: {len(matches)} of {len(held_out)} evaluation tasks are in the training data ({kinds}; searched: "
        f"{searched}), such as {', '.join(examples)}; success on them does not show that the agent generalizes: remove "
        "them from the training data, or evaluate on other tasks"
    )
    return {
        "where": where,
        "count": len(matches),
        "held_out": len(held_out),
        "searched": searched,
        "matches": dict(by_kind),
        "examples": examples,
        "sentence": sentence,
    }


def _training_tasks(assembly: RunComponents, resolved: Resolved) -> Iterator[tuple[str, list[Task]]]:
    """Yield (recipe key, tasks) of the sources that stages of a recipe sample from."""
    planned: dict[str, int] = {}
    for settings in resolved.recipe.own_stages.values():
        if isinstance(settings, SupervisedSettings):
            if settings.data is None:
                key = "tasks" if assembly.demonstration_source is assembly.source else "supervised.tasks"
                planned[key] = planned.get(key, 0) + settings.steps * settings.batch_size
        elif isinstance(settings, ReinforcementSettings | SamplingSettings | DistillationSettings):
            planned["tasks"] = planned.get("tasks", 0) + settings.steps * settings.tasks_per_step
    for key, count in planned.items():
        source: Source = assembly.source if key == "tasks" else assembly.demonstration_source
        most = min(source.training_tasks, _MAX_TASKS) if isinstance(source, Finite) else _MAX_GENERATED
        yield key, [source.task(index) for index in range(min(count, most))]


def _files(resolved: Resolved) -> Iterator[tuple[str, DataSettings]]:
    """Yield (recipe key, settings) of the data files of all stages."""
    for kind, settings in resolved.recipe.own_stages.items():
        data = get_data(settings)
        if data is not None and data.path:
            yield f"{kind}.data", data


def _repeated(held_out: Sequence[Task], training: Iterable[Task], *, is_list: bool) -> _Matches:
    """Return the evaluation tasks that also are training tasks.

    Args:
        held_out: Evaluation tasks.
        training: Training tasks.
        is_list: Whether the tasks are rows of a list, of which only the answers are compared.
    """
    ids = {task.id: task for task in held_out}
    exact: dict[str, list[Task]] = {}
    for task in held_out:
        exact.setdefault(normalize_prompt(task.prompt), []).append(task)
    matches: _Matches = {}
    for task in training:
        if task.id in ids:
            matches.setdefault(task.id, ("id", task.id))
        text = normalize_prompt(task.prompt)
        for other in exact.get(text, ()) if text else ():
            if _is_about_the_same(other.private, task.private, is_list=is_list):
                kind = "prompt" if other.prompt == task.prompt else "normalized prompt"
                matches.setdefault(other.id, (kind, task.id))
    return matches


def _is_about_the_same(one: Mapping[str, Any], other: Mapping[str, Any], *, is_list: bool) -> bool:
    """Return whether the private values of two tasks with one prompt are compatible."""
    answers = [key for key in _ANSWERS if is_list and key in one and key in other]
    if answers:
        return all(to_json(one[key]) == to_json(other[key]) for key in answers)
    return not one or not other or to_json(one) == to_json(other)


def _contained(settings: DataSettings, held_out: Sequence[Task], excluded: Container[int] = ()) -> tuple[int, _Matches]:
    """Return (number of rows searched, evaluation tasks in them), for the rows of a file that are not left out."""
    tasks = {task.id: task for task in held_out}
    texts: dict[str, str] = {}
    room = _MAX_CHARACTERS
    for row in read_rows(Path(settings.path), split=settings.split):
        if room <= 0:
            break
        if not isinstance(row, InvalidRow) and row.number not in excluded:
            texts[f"row {row.number}"] = text = "\n".join(collect_texts(row.columns))
            room -= len(text)
    normal = {where: normalize_prompt(text) for where, text in texts.items()}
    matches: _Matches = {}
    for where, id in find_overlaps(texts.items(), held_out):
        prompt = tasks[id].prompt
        if prompt in texts[where]:
            matches.setdefault(id, ("prompt", where))
        elif normalize_prompt(prompt) in normal[where]:
            matches.setdefault(id, ("normalized prompt", where))
        elif len(re.findall(r"\w+", prompt)) >= WORDS:
            matches.setdefault(id, (f"{WORDS} words in a row", where))
    return len(texts), matches
