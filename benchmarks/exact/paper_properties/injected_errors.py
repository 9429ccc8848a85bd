"""Known errors that are inserted into successful episodes of the customer service."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

from paper_properties import exact
from whetstone.analysis.exact import Figure
from whetstone.analysis.injected_errors import InjectionReport, LabeledEpisode, inject_errors
from whetstone.environments import ENVIRONMENTS
from whetstone.environments.built_in.support import SupportTasks
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.rewards.environment_state.environment_outcome import verdict
from whetstone.rewards.process.step_labels import StepLabels
from whetstone.trajectory import Group, Score, Task, Trajectory

_MAKE: Callable[..., Any] = functools.partial(ENVIRONMENTS["support"], max_calls_per_turn=1)


@functools.cache
def _groups() -> tuple[Group, ...]:
    """Return episodes of the expert of 16 requests."""
    source = SupportTasks()

    async def play(task: Task, number: int) -> Group:
        played = await play_with_policy(
            _MAKE, task, lambda conversation, tools, _: source.demonstrate(task, conversation, tools), seed=0
        )
        episode = replace(played.trajectory, id=f"group-{number}#0", score=Score(1.0, success=True))
        return Group(task, (episode,), number)

    async def play_all() -> tuple[Group, ...]:
        return tuple([await play(source.task(number), number) for number in range(16)])

    return asyncio.run(play_all())


@functools.cache
def _inject(seed: int) -> InjectionReport:
    return asyncio.run(inject_errors(_groups(), _MAKE, verdict, _MAKE().toolset.specs, seed=seed))


def _describe(report: InjectionReport) -> list[tuple[str, str, int | None, str]]:
    return [
        (
            row.episode.id,
            row.error_kind,
            None if row.error is None else row.error.turn,
            "" if row.error is None else row.error.changed,
        )
        for row in report.rows
    ]


def _first_difference(row: LabeledEpisode) -> int | None:
    """Return the index of the first action that differs from the source; None: all are equal."""
    source = [str(turn.message.to_openai()) for turn in row.source.turns]
    changed = [str(turn.message.to_openai()) for turn in row.episode.turns]
    for k, (one, other) in enumerate(zip(source, changed, strict=False)):
        if _without_ids(one) != _without_ids(other):
            return k
    return None if len(source) == len(changed) else min(len(source), len(changed))


def _without_ids(text: str) -> str:
    return "'".join(part for part in text.split("'") if not part.startswith("call_"))


def _transcript(episode: Trajectory) -> list[str]:
    return [str([m.text for m in turn.observation]) + str([c.outcome for c in turn.calls]) for turn in episode.turns]


def _rank_first(by: Callable[[LabeledEpisode], float]) -> float:
    """Return how often the right episode of a changed one scores more; ties count half."""
    rows = [row for row in _inject(0).rows if row.error is not None]
    right = {row.source.id: replace(row, episode=row.source, error=None) for row in rows}
    pairs = [(by(right[row.source.id]), by(row)) for row in rows]
    return fmean((good > bad) + (good == bad) / 2 for good, bad in pairs)


def _score_steps(row: LabeledEpisode) -> float:
    task = replace(row.task, private={"step_labels": [*row.step_labels, *[1] * 99]})
    return asyncio.run(StepLabels(together="min")(row.episode, task)).value


@exact(
    "aegis",
    "toolcomp",
    of=[inject_errors, StepLabels],
    note="rules change actions of a scripted expert; no attribution model is trained",
)
def labels_of_injected_errors_are_true_by_replay() -> list[Figure]:
    """In 16 episodes of the customer service, each row differs from its source first at the labeled turn, and from
    there the environment responds differently or the task is no longer solved; kinds are equally frequent, the rows
    are a function of the seed, and the sources stay as they are. Step labels rank each right episode above its changed
    one, also if both are solved; the outcome cannot."""
    before = [_transcript(group.trajectories[0]) for group in _groups()]
    rows = _inject(0).rows
    wrong = sum(_first_difference(row) != (row.error and row.error.turn) for row in rows)
    harmless = 0
    for row in rows:
        if row.error is not None:
            same = _transcript(row.source)[row.error.turn :] == _transcript(row.episode)[row.error.turn :]
            harmless += same and row.episode.solved
    counts = Counter(row.error_kind for row in rows)
    repeated = asyncio.run(inject_errors(_groups(), _MAKE, verdict, _MAKE().toolset.specs, seed=0))
    solved = [row for row in rows if row.error is not None and row.episode.solved]
    return [
        Figure("rows whose first changed action is not the labeled turn", "=", 0, wrong),
        Figure("changed rows with the same responses and success", "=", 0, harmless),
        Figure("kinds of rows, with those without an error", "=", 5, len(counts)),
        Figure("largest less smallest number of rows of a kind", "=", 0, max(counts.values()) - min(counts.values())),
        Figure("rows of a kind", ">=", 8, min(counts.values())),
        Figure("rows that differ with the same seed", "=", 0, int(_describe(repeated) != _describe(_inject(0)))),
        Figure("shared rows with another seed", "<", len(rows), len({*_describe(_inject(1))} & {*_describe(repeated)})),
        Figure("source episodes that changed", "=", 0,
               sum(_transcript(g.trajectories[0]) != old for g, old in zip(_groups(), before, strict=True))),
        Figure("right before changed, by step labels", "=", 1.0, _rank_first(_score_steps)),
        Figure("by the outcome", "=", 1 - len(solved) / 2 / (len(rows) - counts["none"]),
               _rank_first(lambda row: float(row.episode.solved))),
    ]  # fmt: skip
