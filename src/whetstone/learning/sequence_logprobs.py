"""Sequence log-probs: gradients of losses on sums of log-probs, distributed to the tokens of each sum.

    log-probs of all segments → sums → loss → ∂loss/∂sum → token loss  ∂loss/∂sum · ℓ

A pair can therefore be in different micro-batches, and its gradient is still exact.

Note:
    A turn that several trajectories share is one sum. Each copy of its tokens has a fraction of the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whetstone.algorithms import Level, SumLoss, annotated_level, column_names
from whetstone.algorithms.returns import reward_to_go
from whetstone.learning.columns import Columns
from whetstone.learning.token_index import IndexedTrajectory

SEQUENCE_COLUMNS = frozenset({
    "learner_sums", "old_sums", "reference_sums", "rewards", "group", "action_keys", "lengths", "turn_counts",
})  # fmt: skip
"""Names of the columns that an objective on sequence log-probs can read."""


@dataclass(frozen=True, slots=True)
class SequenceLogprobs:
    """Assignment of the action tokens of a batch to S sums: one per trajectory, or one per turn."""

    unit: list[Tensor]
    """[A] per segment, index of the sum that each action token belongs to."""
    share: list[Tensor]
    """[A] per segment, weight of each token: 1 / (number of its copies in the batch)."""
    columns: Mapping[str, Tensor]
    """[S] columns of the sums: rewards, group, action_keys, lengths, turn_counts."""

    def of(self, per_segment: Sequence[Tensor]) -> Tensor:
        """Return [S] sums of [A] numbers per segment, in float64."""
        totals = torch.zeros(len(self.columns["rewards"]), dtype=torch.float64)
        for unit, share, numbers in zip(self.unit, self.share, per_segment, strict=True):
            totals.index_add_(0, unit, share * numbers.detach().cpu().double())
        return totals


def build_sequence_logprobs(
    columns: Columns, column_index: Sequence[tuple[int, int]], level: Level
) -> SequenceLogprobs:
    """Assign the tokens of a batch to sums: one per trajectory, or one per turn.

    A turn is compared with its siblings in the tree.

    Args:
        columns: Columns of the whole step.
        column_index: (index of the trajectory, index of the segment in it) of each segment of the batch.
        level: `trajectory` or `turn`.
    """
    to_come = reward_to_go(columns["turn_rewards"], columns["trajectory"])
    begins = torch.searchsorted(columns["trajectory"], torch.arange(len(columns.trajectories)))
    known: dict[object, int] = {}
    rewards: list[list[float]] = []
    groups: list[object] = []
    actions: list[object] = []
    turns: list[int] = []
    units: list[Tensor] = []
    for i, k in column_index:
        entry = columns.trajectories[i]
        in_segment = entry.segment == k
        turns_here, of_token = np.unique(
            entry.turn[in_segment][np.argsort(entry.place[in_segment])], return_inverse=True
        )
        own_sums = []
        for t in turns_here.tolist() if level == "turn" else turns_here[:1].tolist():
            key = entry.trajectory.id if level == "trajectory" else id(entry.trajectory.turns[t])
            if key not in known:
                known[key] = len(known)
                rewards.append([])
                groups.append(entry.number if level == "trajectory" else _parent(entry, t))
                actions.append(_did(entry, None if level == "trajectory" else t))
                turns.append(len(entry.trajectory.turns) if level == "trajectory" else 1)
            own_sums.append(known[key])
            value = columns["rewards"][i] if level == "trajectory" else to_come[begins[i] + t]
            rewards[known[key]].append(float(value))
        units.append(
            torch.tensor(own_sums, dtype=torch.long)[torch.from_numpy(of_token if level == "turn" else 0 * of_token)]
        )
    times = [max(1, len(of) if level == "turn" else 1) for of in rewards]
    one_of = 1 / torch.tensor(times, dtype=torch.float64)
    share = [one_of[of] for of in units]
    lengths = torch.zeros(len(known), dtype=torch.float64)
    for of, part in zip(units, share, strict=True):
        lengths.index_add_(0, of, part)
    return SequenceLogprobs(
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


def compute_coefficients(
    objective: Callable[..., Any], sums: SequenceLogprobs, logprobs: Mapping[str, Sequence[Tensor]]
) -> tuple[list[Tensor], float, dict[str, float]]:
    """Compute the gradient of a loss on sequence log-probs with respect to each token's log-prob.

    Args:
        objective: Sums and columns → `SumLoss`.
        sums: Assignment of tokens to sums.
        logprobs: By `learner`, `old`, `reference`: [A] log-probs per segment.

    Returns:
        (per segment, [A] coefficient of each token's log-prob; the loss; metrics).
    """
    learner = sums.of(logprobs["learner"]).requires_grad_()
    inputs = {f"{name}_sums": sums.of(of) for name, of in logprobs.items()} | dict(sums.columns)
    inputs["learner_sums"] = learner
    result: SumLoss = objective(*(inputs[name] for name in column_names(objective)))
    if len(learner):
        result.loss.backward()  # type: ignore[no-untyped-call]
    slope = learner.grad if learner.grad is not None else torch.zeros_like(learner)
    per_token = [slope[unit] * share for unit, share in zip(sums.unit, sums.share, strict=True)]
    return per_token, result.loss.item(), result.metrics


def get_sequence_level(objective: Callable[..., Any]) -> Any:
    """Return the level of the sums that an objective compares: `trajectory` or `turn`.

    None: the objective uses tokens.
    """
    return annotated_level(objective, "learner_sums") if "learner_sums" in column_names(objective) else None


def _parent(entry: IndexedTrajectory, turn: int) -> object:
    """Return a key that the siblings of a turn share: the preceding turn, or the task."""
    return ("task", entry.number) if turn == 0 else id(entry.trajectory.turns[turn - 1])


def _did(entry: IndexedTrajectory, turn: int | None) -> object:
    turns = entry.trajectory.turns if turn is None else entry.trajectory.turns[turn : turn + 1]
    return tuple(each.action.ids for each in turns)


def _numbered(keys: Sequence[object]) -> Tensor:
    known: dict[object, int] = {}
    return torch.tensor([known.setdefault(key, len(known)) for key in keys], dtype=torch.long)
