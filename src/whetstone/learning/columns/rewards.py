"""What was an episode, a turn or a token paid? Outcomes, process rewards, and what else a reward says.

Easy to get wrong: shaping puts other rewards in the place of those read, so what is made of them asks the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whetstone.algorithms.returns import last_of
from whetstone.errors import CreditError
from whetstone.learning.columns.declaration import Requirement, RunCapabilities, column

if TYPE_CHECKING:
    from whetstone.learning.columns.batch import Columns


def from_reward(name: str, what: str = "", known: str = "") -> Requirement:
    """Nothing is missing where the reward says that its scores carry this column.

    Args:
        what: What it is, in words; empty: a signal or part of its name.
        known: Rewards of ours that give it.
    """
    return partial(_unsaid, name, what or f"a signal or part named {name}", f"{known}, or " if known else "")


def _unsaid(name: str, what: str, known: str, run: RunCapabilities) -> str | None:
    if name in run.reward:
        return None
    said = f'reward "{run.recipe.reward.name}" does not provide {what}; one that does: {known}your own, marked'
    return f'{said} @provides("{name}")'


def _process(run: RunCapabilities) -> str | None:
    rewarded = from_reward("process_rewards", "rewards of turns", "matched_calls, meta_reasoning")
    return None if "process_rewards" in run.strategy else rewarded(run)


def _greedy(run: RunCapabilities) -> str | None:
    if "greedy_rewards" in run.strategy:
        return None
    return "rollout.strategy: greedy_baseline plays each task once without chance"


@column("trajectory")
def outcomes(batch: Columns) -> Iterable[float]:
    """What the reward says of the whole episode; 0 without a score."""
    return (held.trajectory.score.value if held.trajectory.score is not None else 0.0 for held in batch.held)


@column("trajectory")
def rewards(batch: Columns) -> Tensor:
    """Outcome and process rewards together."""
    return batch["outcomes"].clone().index_add_(0, batch["trajectory"], _of_turns(batch))


@column("turn", provided_by="a reward that scores turns: `matched_calls`, `meta_reasoning`", requires=_process)
def process_rewards(batch: Columns) -> Iterable[float]:
    """What the reward says of each turn."""
    for _, held, t in batch.turns():
        score = held.trajectory.score
        if score is None or score.turns is None:
            raise CreditError(f"process_rewards: {held.trajectory.id}: its reward says nothing of its turns")
        yield score.turns[t]


@column("turn")
def turn_rewards(batch: Columns) -> Tensor:
    """A turn's reward; the last one's has the outcome besides."""
    ends = last_of(batch["trajectory"])
    return _of_turns(batch) + torch.where(ends, batch["outcomes"][batch["trajectory"]], 0.0)


@column("token")
def token_rewards(batch: Columns) -> Tensor:
    """A turn's reward on its last action token, the outcome on the last of all."""
    turn, owner = batch["turn"], batch["token_trajectory"]
    of_turn = torch.where(last_of(turn), _of_turns(batch)[turn], 0.0)
    return of_turn + torch.where(last_of(owner), batch["outcomes"][owner], 0.0)


@column("trajectory", provided_by="`rollout.strategy: greedy_baseline`", requires=_greedy)
def greedy_rewards(batch: Columns) -> Iterable[float]:
    """What the episode of the same task without chance was paid; NaN where there is none."""
    for held in batch.held:
        yield next((t.score.value for t in held.group.trajectories if t.greedy and t.score is not None), math.nan)


_MATCHED = "`reward: matched_calls`"


@column(
    "turn",
    provided_by=_MATCHED,
    requires=from_reward("matched", "whether each turn matched an expert's", "matched_calls"),
)
def matched(batch: Columns) -> Iterable[float]:
    """Whether a turn matched an expert's."""
    return batch.of_reward("matched")


@column(
    "turn",
    provided_by=_MATCHED,
    requires=from_reward("progress", "the share of subgoals reached in front of each turn", "matched_calls"),
)
def progress(batch: Columns) -> Iterable[float]:
    """The share of subgoals reached in front of a turn."""
    return batch.of_reward("progress")


@column(
    "trajectory",
    provided_by=_MATCHED,
    requires=from_reward("action_rewards", "how good an episode's calls were", "matched_calls"),
)
def action_rewards(batch: Columns) -> Iterable[float]:
    """How good an episode's calls were."""
    return batch.of_reward("action_rewards")


@column(
    "turn",
    provided_by="`reward: meta_reasoning`",
    requires=from_reward("tags", "the kind of thought of each turn", "meta_reasoning"),
)
def tags(batch: Columns) -> Iterable[float]:
    """The kind of thought of a turn."""
    return batch.of_reward("tags")


def _of_turns(batch: Columns) -> Tensor:
    """Process rewards, made over or as they are; 0 where the reward gives none and nobody asked for them."""
    made = batch.made("process_rewards")
    if made is not None:
        return made
    scores = ((held.trajectory.score, t) for _, held, t in batch.turns())
    said = [score.turns[t] if score is not None and score.turns is not None else 0.0 for score, t in scores]
    return torch.tensor(said, dtype=torch.float64)
