"""How does a loss on sums of log-probs reach tokens? Its gradient in each sum is what that sum's tokens are pushed by.

    log-probs of all segments → sums → loss → ∂loss/∂sum → token loss  ∂loss/∂sum · ℓ

So a pair may lie in different micro-batches, and the gradient is exact all the same.

Easy to get wrong: a turn that several trajectories share is one sum. Each copy of its tokens carries its share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whetstone.algorithms import Level, SumLoss, columns_of, level_of
from whetstone.algorithms.returns import reward_to_go
from whetstone.learning.columns import Columns
from whetstone.learning.token_index import IndexedTrajectory

OF_SUMS = frozenset({
    "learner_sums", "old_sums", "reference_sums", "rewards", "group", "action_keys", "lengths", "turn_counts",
})  # fmt: skip
"""Columns an objective on sums may read."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What a batch's sums are of."""

    unit: list[Tensor]
    """Per segment, [A] which sum each action token is in."""
    share: list[Tensor]
    """Per segment, [A] how much of it: one over how often the token lies in the batch."""
    columns: Mapping[str, Tensor]
    """[S] rewards, group, action_keys, lengths, turn_counts."""

    def of(self, per_segment: Sequence[Tensor]) -> Tensor:
        """[S] sums of numbers [A] per segment; float64."""
        found = torch.zeros(len(self.columns["rewards"]), dtype=torch.float64)
        for unit, share, numbers in zip(self.unit, self.share, per_segment, strict=True):
            found.index_add_(0, unit, share * numbers.detach().cpu().double())
        return found


def sums_of(columns: Columns, placed: Sequence[tuple[int, int]], level: Level) -> Sums:
    """The sums of a batch: one a trajectory, or one a turn that its siblings in the tree are compared with.

    Args:
        columns: Of the whole step.
        placed: For each segment of the batch, (number of its trajectory, number of the segment there).
        level: `trajectory` or `turn`.
    """
    to_come = reward_to_go(columns["turn_rewards"], columns["trajectory"])
    begins = torch.searchsorted(columns["trajectory"], torch.arange(len(columns.held)))
    known: dict[object, int] = {}
    rewards: list[list[float]] = []
    groups: list[object] = []
    actions: list[object] = []
    turns: list[int] = []
    units: list[Tensor] = []
    for i, k in placed:
        held = columns.held[i]
        here = held.segment == k
        turns_here, of_token = np.unique(held.turn[here][np.argsort(held.place[here])], return_inverse=True)
        mine = []
        for t in turns_here.tolist() if level == "turn" else turns_here[:1].tolist():
            key = held.trajectory.id if level == "trajectory" else id(held.trajectory.turns[t])
            if key not in known:
                known[key] = len(known)
                rewards.append([])
                groups.append(held.number if level == "trajectory" else _parent(held, t))
                actions.append(_did(held, None if level == "trajectory" else t))
                turns.append(len(held.trajectory.turns) if level == "trajectory" else 1)
            mine.append(known[key])
            worth = columns["rewards"][i] if level == "trajectory" else to_come[begins[i] + t]
            rewards[known[key]].append(float(worth))
        units.append(
            torch.tensor(mine, dtype=torch.long)[torch.from_numpy(of_token if level == "turn" else 0 * of_token)]
        )
    times = [max(1, len(of) if level == "turn" else 1) for of in rewards]
    one_of = 1 / torch.tensor(times, dtype=torch.float64)
    share = [one_of[of] for of in units]
    lengths = torch.zeros(len(known), dtype=torch.float64)
    for of, part in zip(units, share, strict=True):
        lengths.index_add_(0, of, part)
    return Sums(
        units,
        share,
        {
            "rewards": torch.tensor([sum(of) / len(of) for of in rewards], dtype=torch.float64),
            "group": _numbered(groups),
            "action_keys": _numbered(actions),
            "lengths": lengths,
            "turn_counts": torch.tensor(turns),
        },
    )


def coefficients(
    objective: Callable[..., Any], sums: Sums, logprobs: Mapping[str, Sequence[Tensor]]
) -> tuple[list[Tensor], float, dict[str, float]]:
    """(per segment, [A] what each token's log-prob is multiplied by; the loss; metrics)

    Args:
        objective: Sums and columns → SumLoss.
        logprobs: By `learner`, `old`, `reference`: [A] per segment.
    """
    learner = sums.of(logprobs["learner"]).requires_grad_()
    given = {f"{name}_sums": sums.of(of) for name, of in logprobs.items()} | dict(sums.columns)
    given["learner_sums"] = learner
    found: SumLoss = objective(*(given[name] for name in columns_of(objective)))
    if len(learner):
        found.loss.backward()  # type: ignore[no-untyped-call]
    slope = learner.grad if learner.grad is not None else torch.zeros_like(learner)
    per_token = [slope[unit] * share for unit, share in zip(sums.unit, sums.share, strict=True)]
    return per_token, found.loss.item(), found.metrics


def sums_level(objective: Callable[..., Any]) -> Any:
    """Of what an objective compares sums of log-probs, trajectories or turns; None where it is one of tokens."""
    return level_of(objective, "learner_sums") if "learner_sums" in columns_of(objective) else None


def _parent(held: IndexedTrajectory, turn: int) -> object:
    """What siblings of a turn have in common: the turn in front of it, or the task."""
    return ("task", held.number) if turn == 0 else id(held.trajectory.turns[turn - 1])


def _did(held: IndexedTrajectory, turn: int | None) -> object:
    turns = held.trajectory.turns if turn is None else held.trajectory.turns[turn : turn + 1]
    return tuple(each.action.ids for each in turns)


def _numbered(keys: Sequence[object]) -> Tensor:
    known: dict[object, int] = {}
    return torch.tensor([known.setdefault(key, len(known)) for key in keys], dtype=torch.long)
