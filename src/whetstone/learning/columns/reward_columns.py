"""Reward columns: outcomes, process rewards, and signals that a reward provides.

Note:
    Reward shaping replaces columns. A column that is computed from rewards must therefore read them from the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whetstone.algorithms import Level
from whetstone.algorithms.returns import is_last_step
from whetstone.errors import CreditError
from whetstone.learning.columns.declaration import Column, Requirement, RunCapabilities, column

if TYPE_CHECKING:
    from whetstone.learning.columns.batch import Columns


def from_reward(name: str, what: str = "", known: str = "") -> Requirement:
    """Return the requirement that the reward of a run provides a column.

    Args:
        name: Name of the column.
        what: Description of the column; empty: a signal or part with its name.
        known: Built-in rewards that provide the column, for the message.
    """
    return partial(
        _missing_from_reward, name, what or f"a signal or part named {name}", f"{known}, or " if known else ""
    )


def _missing_from_reward(name: str, what: str, known: str, run: RunCapabilities) -> str | None:
    if name in run.reward:
        return None
    missing = f'reward "{run.recipe.reward.name}" does not provide {what}; one that does: {known}your own, marked'
    return f'{missing} @provides("{name}")'


def _process(run: RunCapabilities) -> str | None:
    rewarded = from_reward("process_rewards", "rewards of turns", "matched_calls, meta_reasoning")
    return None if "process_rewards" in run.strategy else rewarded(run)


def _greedy(run: RunCapabilities) -> str | None:
    if "greedy_rewards" in run.strategy:
        return None
    return "rollout.strategy: greedy_baseline also plays each task greedily"


@column("trajectory")
def outcomes(batch: Columns) -> Iterable[float]:
    """Score of the whole episode; 0 without a score."""
    return (entry.trajectory.score.value if entry.trajectory.score is not None else 0.0 for entry in batch.trajectories)


@column("trajectory")
def rewards(batch: Columns) -> Tensor:
    """Sum of the outcome and all process rewards of the trajectory."""
    return batch["outcomes"].clone().index_add_(0, batch["trajectory"], _read_turn_rewards(batch))


@column("turn", provided_by="a reward that scores turns: `matched_calls`, `meta_reasoning`", requires=_process)
def process_rewards(batch: Columns) -> Iterable[float]:
    """Process reward of each turn, from a reward that scores turns."""
    for _, entry, t in batch.turns():
        score = entry.trajectory.score
        if score is None or score.turns is None:
            raise CreditError(
                f"process_rewards: {entry.trajectory.id}: its reward does not score turns; "
                "set a reward that does, such as matched_calls"
            )
        yield score.turns[t]


@column("turn")
def turn_rewards(batch: Columns) -> Tensor:
    """Reward of each turn; that of the last turn includes the outcome."""
    ends = is_last_step(batch["trajectory"])
    return _read_turn_rewards(batch) + torch.where(ends, batch["outcomes"][batch["trajectory"]], 0.0)


@column("token")
def token_rewards(batch: Columns) -> Tensor:
    """Reward of a turn at its last action token; the last token of the trajectory includes the outcome."""
    turn, owner = batch["turn"], batch["token_trajectory"]
    of_turn = torch.where(is_last_step(turn), _read_turn_rewards(batch)[turn], 0.0)
    return of_turn + torch.where(is_last_step(owner), batch["outcomes"][owner], 0.0)


@column("trajectory", provided_by="`rollout.strategy: greedy_baseline`", requires=_greedy)
def greedy_rewards(batch: Columns) -> Iterable[float]:
    """Score of the greedy episode of the same task; NaN if there is none."""
    for entry in batch.trajectories:
        yield next((t.score.value for t in entry.group.trajectories if t.greedy and t.score is not None), math.nan)


def _signal(name: str, level: Level, reward: str, about: str, what: str) -> Column:
    """Declare the column of a signal, or of a part of the score, that a built-in reward provides."""
    requires = from_reward(name, what, reward)
    build = partial(_read_signal, name=name)
    return Column(name, level, build, about, provided_by=f"`reward: {reward}`", requires=requires)


def _read_signal(batch: Columns, name: str) -> Iterable[float]:
    return batch.read_reward(name)


REWARD_COLUMNS = (
    _signal("matched", "turn", "matched_calls",
            "Whether a turn matched an expert's.", "whether each turn matched an expert's"),
    _signal("progress", "turn", "matched_calls",
            "Fraction of subgoals reached before a turn.", "the fraction of subgoals reached before each turn"),
    _signal("action_rewards", "trajectory", "matched_calls",
            "Score of an episode's calls.", "a score of an episode's calls"),
    _signal("tags", "turn", "meta_reasoning", "Kind of thought of a turn.", "the kind of thought of each turn"),
)  # fmt: skip
"""Columns of the signals of built-in rewards."""


def _read_turn_rewards(batch: Columns) -> Tensor:
    """Return [M] process rewards, shaped or original; 0 if the reward provides none and none were requested."""
    column = batch.get_cached("process_rewards")
    if column is not None:
        return column
    scores = ((entry.trajectory.score, t) for _, entry, t in batch.turns())
    turn_scores = [score.turns[t] if score is not None and score.turns is not None else 0.0 for score, t in scores]
    return torch.tensor(turn_scores, dtype=torch.float64)
