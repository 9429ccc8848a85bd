"""First difference of two runs, in causal order (`whetstone bisect`).

    recipe and inputs → task → context → log-prob → sampled token → observation → end → reward → advantage
    → update metric → weight

The record of groups, the metrics and the checkpoints of both runs are compared from the first step on. Advantages are
computed again from the record. Times, and paths of inputs with equal content, are not compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from whetstone.analysis.replay_check import RunReplay, advantages_of, is_credit_on_record, refuse_damage
from whetstone.recipe.resume_changes import find_differences, find_effect
from whetstone.recipe.settings import SAMPLES
from whetstone.record.checkpoint import CHECKSUMS, checkpoint_path, checkpoints_in
from whetstone.record.reader import RunRecord
from whetstone.record.run_directory import read_changes, read_json, run_inputs, run_recipe
from whetstone.record.starting import stage_folders
from whetstone.reporting import Journal, read_trajectories
from whetstone.trajectory import Group, Task, Trajectory, Turn

_BY_THE_CLOCK = ("time/", "throughput/", "memory/", "scale/")
_CONTEXT_TOKENS = 24
"""Tokens before a difference that are values as text."""


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """First difference of two runs in causal order, with its position and both values."""

    level: str
    """`task`, `context`, `log-prob`, `sampled token`, `observation`, `end`, `reward`, `advantage`, `update` or
    `weight`."""
    stage: str
    """Stage, or `evaluation untrained`."""
    step: int
    """Step of the stage, from 1; 0: before the first step."""
    a: str
    """Value in the first run."""
    b: str
    """Value in the second run."""
    name: str = ""
    """Metric, parameter, or part of the reward."""
    group: int | None = None
    """Position of the group in the step, from 0."""
    task: str = ""
    """Id of the task."""
    trajectory: str = ""
    """Id in the first run."""
    turn: int | None = None
    """Turn of the trajectory, from 0."""
    token: int | None = None
    """Token of the turn's context or action, from 0."""
    text: str = ""
    """Text before the token, which is equal in both runs."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Comparison of two runs: differences of their inputs, and the first difference of their results."""

    inputs: tuple[tuple[str, str, str], ...]
    """Keys, files, recipe changes and parts of the environment that differ: (name, value in A, value in B)."""
    first: FirstDifference | None
    """The first difference of the results; None: there is none."""
    steps: Mapping[str, tuple[int, int]]
    """By stage, the steps on record of A and B. Only common steps are compared."""


def compare_runs(a: Path, b: Path) -> RunComparison:
    """Compare two runs and find the first difference of their results (`whetstone bisect`).

    Raises:
        RunDirectoryError: A directory is not a run, or its record is damaged.
    """
    inputs = tuple(_input_differences(a, b))
    first: FirstDifference | None = None
    steps: dict[str, tuple[int, int]] = {}
    for one, other, prefix in _parts(a, b):
        pair = _Pair(one, other)
        steps |= {f"{prefix}{stage}": count for stage, count in pair.steps.items()}
        if first is None:
            first = pair.find_first()
    return RunComparison(inputs, first, steps)


def _parts(a: Path, b: Path) -> Iterator[tuple[Path, Path, str]]:
    """Yield pairs of run directories to compare: of the stages of a chain, or the runs themselves."""
    common = [path.name for path in stage_folders(a) if (b / "stages" / path.name / "recipe.yaml").is_file()]
    if not common:
        yield a, b, ""
    for name in common:
        yield a / "stages" / name, b / "stages" / name, f"{name}/"


def _input_differences(a: Path, b: Path) -> Iterator[tuple[str, str, str]]:
    digests = [run_inputs(run) or {} for run in (a, b)]
    same = {key for key in digests[0] if digests[0][key] == digests[1].get(key)}
    for key, (one, other) in find_differences(*(run_recipe(run).to_dict() for run in (a, b))).items():
        if key not in same and find_effect(key) != "none":
            yield key, _value(one), _value(other)
    for key in sorted(digests[0].keys() & digests[1].keys() - same):
        yield f"content of {key}", digests[0][key][:12], digests[1][key][:12]
    changes = [[str(change) for change in read_changes(run)] for run in (a, b)]
    if changes[0] != changes[1]:
        yield "changes of the recipe", "; ".join(changes[0]) or "none", "; ".join(changes[1]) or "none"
    stored = [read_json(run / "environment.json") or {} for run in (a, b)]
    environments = [_flat({key: each[key] for key in each.keys() - {"started", "events"}}) for each in stored]
    for key in sorted(environments[0].keys() & environments[1].keys()):
        if environments[0][key] != environments[1][key]:
            yield f"environment: {key}", _value(environments[0][key]), _value(environments[1][key])


class _Pair:
    """Two run directories of one stage each, whose records are compared step by step."""

    def __init__(self, a: Path, b: Path) -> None:
        self.runs = (a, b)
        self.rows = [{(row["stage"], row["step"]): row for row in Journal(run).read()} for run in self.runs]
        self.records = [RunRecord(run, forgotten=refuse_damage) for run in self.runs]

    @cached_property
    def replays(self) -> tuple[RunReplay, RunReplay]:
        """Open replays of both runs, which assemble their components; needed only to recompute advantages."""
        return RunReplay(self.runs[0]), RunReplay(self.runs[1])

    @property
    def steps(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of recorded steps of both runs, by stage."""
        stages = dict.fromkeys(stage for rows in self.rows for stage, _ in rows)
        difference = {}
        for stage in stages:
            a, b = (max((step for kind, step in rows if kind == stage), default=0) for rows in self.rows)
            difference[stage] = (a, b)
        return difference

    def find_first(self) -> FirstDifference | None:
        """Return the first difference of the two runs; None if all common steps are equal."""
        before = self._evaluation()
        if before is not None:
            return before
        done = (0, 0)
        for stage, counts in self.steps.items():
            for step in range(1, min(counts) + 1):
                checkpoints = (done[0] + step, done[1] + step)
                difference = self._sampling(stage, step) or self._update(stage, step)
                difference = difference or self._weights(stage, step, checkpoints)
                if difference is not None:
                    return difference
            done = (done[0] + counts[0], done[1] + counts[1])
        return None

    def _evaluation(self) -> FirstDifference | None:
        """Compare the episodes of the evaluation before training, which depend on the initial weights."""
        paths = [run / "trajectories" / "evaluation-untrained.jsonl" for run in self.runs]
        if not all(path.is_file() for path in paths):
            return None
        played: list[dict[str, Trajectory]] = [{t.id: t for t in read_trajectories(path)} for path in paths]
        common = [name for name in played[0] if name in played[1]]
        ones = [Group(Task(name, ""), (played[0][name],)) for name in common]
        others = [Group(Task(name, ""), (played[1][name],)) for name in common]
        return self._episodes("evaluation untrained", 0, ones, others)

    def _sampling(self, stage: str, step: int) -> FirstDifference | None:
        """Compare the groups of a step: tasks, then tokens, then rewards."""
        numbers = [record.consumed.get(step - 1, []) if stage in SAMPLES else [] for record in self.records]
        if not any(numbers):
            return None
        groups = [
            [record.load(number, _task(record, number)) for number in each]
            for record, each in zip(self.records, numbers, strict=True)
        ]
        return self._episodes(stage, step, *groups)

    def _episodes(
        self, stage: str, step: int, ones: Sequence[Group], others: Sequence[Group]
    ) -> FirstDifference | None:
        for place in range(max(len(ones), len(others))):
            a, b = (_task_id(groups[place]) if place < len(groups) else "none" for groups in (ones, others))
            if a != b:
                return FirstDifference("task", stage, step, a, b, group=place)
        pairs = [
            (place, one, other)
            for place, (group, equal) in enumerate(zip(ones, others, strict=True))
            for one, other in zip(group.trajectories, equal.trajectories, strict=False)
        ]
        for place, one, other in pairs:
            difference = self._trajectory(one, other)
            if difference is not None:
                where: dict[str, Any] = {"group": place, "task": one.task_id, "trajectory": one.id}
                return FirstDifference(stage=stage, step=step, **where, **difference)
        for place, (group, equal) in enumerate(zip(ones, others, strict=True)):
            a, b = (f"{len(each.trajectories)} trajectories" for each in (group, equal))
            if a != b:
                return FirstDifference("task", stage, step, a, b, "group size", place, _task_id(group))
        for place, one, other in pairs:
            for name, (value, new) in _rewards(one, other).items():
                values = (_value(value), _value(new))
                return FirstDifference("reward", stage, step, *values, name, place, one.task_id, one.id)
        return None

    def _trajectory(self, one: Trajectory, other: Trajectory) -> dict[str, Any] | None:
        before: list[int] = []
        for number in range(max(len(one.turns), len(other.turns))):
            if min(len(one.turns), len(other.turns)) <= number:
                break
            turn, equal = one.turns[number], other.turns[number]
            before = [] if turn.opens_segment else before
            difference = self._tokens(turn, equal, before)
            if difference is not None:
                return {**difference, "turn": number}
            before += [*turn.context.ids, *turn.action.ids]
            seen = [[(m.role, *m.key) for m in each.observation] for each in (turn, equal)]
            if seen[0] != seen[1]:
                texts = [" / ".join(" ".join(key) for _, *key in each) or "none" for each in seen]
                return {"level": "observation", "a": _value(texts[0]), "b": _value(texts[1]), "turn": number}
        ends = [f"{each.ended}, {len(each.turns)} turns" for each in (one, other)]
        return {"level": "end", "a": ends[0], "b": ends[1]} if ends[0] != ends[1] else None

    def _tokens(self, turn: Turn, equal: Turn, before: list[int]) -> dict[str, Any] | None:
        """Compare context and action of a turn, token by token."""
        for level, one, other in (
            ("context", turn.context, equal.context),
            ("sampled token", turn.action, equal.action),
        ):
            if one.ids == other.ids and one.media != other.media:
                texts = [
                    ", ".join(f"{each.digest} at {each.start}" for each in tokens.media) for tokens in (one, other)
                ]
                return {"level": "image", "a": _value(texts[0] or "none"), "b": _value(texts[1] or "none")}
            for place in range(max(len(one), len(other))):
                ids = [tokens.ids[place] if place < len(tokens) else None for tokens in (one, other)]
                known = {"token": place, "text": self._text([*before, *one.ids[:place]][-_CONTEXT_TOKENS:])}
                if ids[0] != ids[1]:
                    texts = ["end of the turn" if id is None else f"{self._text([id])!r} ({id})" for id in ids]
                    return {"level": level, "a": texts[0], "b": texts[1], **known}
                logprobs = [tokens.logprobs[place] for tokens in (one, other)]
                if not _equal(*logprobs):
                    values = [f"{value:.9g} of {self._text([ids[0]])!r}" for value in logprobs]
                    return {"level": "log-prob", "a": values[0], "b": values[1], **known}
            before = [*before, *one.ids]
        return None

    def _update(self, stage: str, step: int) -> FirstDifference | None:
        """Compare the metrics of a step; if they differ, compare the advantages first."""
        rows = [rows.get((stage, step), {}) for rows in self.rows]
        names = [name for name in rows[0] if name in rows[1] and not name.startswith(_BY_THE_CLOCK)]
        different = [name for name in names if not _equal(rows[0][name], rows[1][name])]
        if not different:
            return None
        if stage in SAMPLES:
            advantage = self._advantage(stage, step)
            if advantage is not None:
                return advantage
        order = ("loss/", "update/grad_norm", "update/")
        name = min(different, key=lambda each: next((i for i, start in enumerate(order) if each.startswith(start)), 9))
        return FirstDifference("update", stage, step, _value(rows[0][name]), _value(rows[1][name]), name=name)

    def _advantage(self, stage: str, step: int) -> FirstDifference | None:
        """Compare recomputed advantages of a step; None if they are equal, or need forward passes of a model."""
        advantages = []
        for replay, record in zip(self.replays, self.records, strict=True):
            assembly, _ = replay.assemblies_at(step - 1)
            if not is_credit_on_record(assembly):
                return None
            advantages.append(
                advantages_of(assembly, [replay.load_group(number) for number in record.consumed[step - 1]])
            )
        for (id, one), other in zip(advantages[0].items(), advantages[1].values(), strict=False):
            for token, (value, new) in enumerate(zip(one, other, strict=False)):
                if not _equal(value, new):
                    values = (_value(value), _value(new))
                    return FirstDifference("advantage", stage, step, *values, trajectory=id, token=token)
        return None

    def _weights(self, stage: str, step: int, numbers: tuple[int, int]) -> FirstDifference | None:
        """Compare the checkpoints after a step, if both runs have one."""
        difference = [checkpoint_path(run, number) for run, number in zip(self.runs, numbers, strict=True)]
        if not all((path / CHECKSUMS).is_file() for path in difference):
            return None
        digests = [json.loads((path / CHECKSUMS).read_text()) for path in difference]
        for name in sorted(digests[0].keys() & digests[1].keys()):
            if name.endswith(".safetensors") and digests[0][name] != digests[1][name]:
                for key, one, other in _tensors(difference[0] / name, difference[1] / name):
                    if one.shape != other.shape:
                        return FirstDifference("weight", stage, step, str(one.shape), str(other.shape), name=key)
                    if not torch.equal(one, other):
                        distances = (one.double() - other.double()).abs().flatten()
                        place = int(distances.argmax())
                        a, b = (f"{float(each.flatten()[place]):.9g}" for each in (one, other))
                        return FirstDifference("weight", stage, step, a, b, f"{key}[{place}]")
        return None

    def _text(self, ids: Sequence[int | None]) -> str:
        known = [id for id in ids if id is not None]
        if self._tokenizer is None:
            return " ".join(map(str, known))
        return self._tokenizer.decode(known, skip_special_tokens=False)

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        """Load the tokenizer of a checkpoint of either run; None: no checkpoint has one."""
        files = [path / "tokenizer.json" for run in self.runs for path in checkpoints_in(run)]
        difference = next((path for path in files if path.is_file()), None)
        return Tokenizer.from_file(str(difference)) if difference is not None else None


def _tensors(a: Path, b: Path) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    with safe_open(a, "pt") as one, safe_open(b, "pt") as other:
        for key in one.keys():  # noqa: SIM118 - no mapping
            if key in other.keys():  # noqa: SIM118
                yield key, one.get_tensor(key), other.get_tensor(key)


def _rewards(one: Trajectory, other: Trajectory) -> dict[str, tuple[Any, Any]]:
    """Return the reward components that differ, with the values of both runs; the outcome is last."""
    a, b = one.score, other.score
    if a is None or b is None:
        return {} if a is b else {"": (a.value if a is not None else None, b.value if b is not None else None)}
    pairs: dict[str, tuple[Any, Any]] = {name: (value, b.parts.get(name)) for name, value in a.parts.items()}
    pairs |= {"turns": (a.turns, b.turns), "": (a.value, b.value), "success": (a.success, b.success)}
    turns = {f"turn {n}": (x.reward, y.reward) for n, (x, y) in enumerate(zip(one.turns, other.turns, strict=False))}
    return {name: pair for name, pair in {**turns, **pairs}.items() if not _equal(*pair)}


def _task(record: RunRecord, number: int) -> Task:
    """Return the task of a group as far as the journal names it: by its index, or the generated task."""
    task = record.tasks.get(number, number)
    return task if isinstance(task, Task) else Task(str(task), "")


def _task_id(group: Group) -> str:
    return group.trajectories[0].task_id if group.trajectories else group.task.id


def _equal(one: Any, other: Any) -> bool:
    both = isinstance(one, float) and isinstance(other, float)
    return bool(one == other) or (both and math.isnan(one) and math.isnan(other))


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {key: value}
    difference: dict[str, Any] = {}
    for part, below in value.items():
        difference |= _flat(below, f"{key}.{part}".lstrip("."))
    return difference


def _value(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else "none" if value is None else str(value)
    return text if len(text) <= 120 else f"{text[:119]}…"
