"""Credit assignment: turns rewards into one advantage per action token, in steps that the recipe names.

    filters → shaping → estimator (return, baseline, scale, blend) → advantage transforms → tokens

Each step is a function whose parameters name the columns that it reads (`columns/`).

Note:
    Trajectories that are removed from training still count in the statistics that others are compared with, unless they
    are removed before the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whetstone.algorithms import Credit, Level, annotated_level, annotated_removal_scope
from whetstone.algorithms.returns import one_step_targets
from whetstone.errors import CreditError
from whetstone.learning.columns import STATE_VALUES, VALUE_POSITIONS, Columns, get_head_kind
from whetstone.learning.token_index import IndexedTrajectory
from whetstone.plugins import unwrap_partial
from whetstone.trajectory import RemovalScope, Segment

LEVELS: tuple[Level, ...] = ("trajectory", "turn", "token")
"""Levels from coarse to fine."""
SHAPED_COLUMNS: dict[Level, str] = {"trajectory": "outcomes", "turn": "process_rewards", "token": "token_rewards"}
"""Column that reward shaping of a level replaces."""


@dataclass(frozen=True, slots=True)
class CreditParts:
    """Functions of a recipe that compute credit: filters, shaping, advantage, transforms."""

    advantage: Callable[..., Any]
    """Columns → advantages, or `Credit`."""
    shaping: Sequence[Callable[..., Any]] = ()
    """Columns → rewards that replace those of its level."""
    advantage_transforms: Sequence[Callable[..., Any]] = ()
    """(advantages, columns) → advantages."""
    filters: Mapping[str, Callable[..., Any]] | None = None
    """By name: columns → weight of each trajectory in the loss; 0 removes it."""

    def list_functions(self) -> list[tuple[str, Callable[..., Any]]]:
        """Return (recipe key, function) pairs of all functions, for error messages."""
        functions = [("advantage", self.advantage)]
        functions += [(f"reward_shaping.{k}", each) for k, each in enumerate(self.shaping)]
        functions += [(f"advantage_transforms.{k}", each) for k, each in enumerate(self.advantage_transforms)]
        return functions + [(f"credit_filters.{k}", each) for k, each in enumerate((self.filters or {}).values())]


@dataclass(frozen=True, slots=True)
class CreditedSegment:
    """Segment with its advantages and critic targets, ready to be trained on."""

    segment: Segment
    """Segment with advantages."""
    target: Tensor | None = None
    """[A, trained heads] critic targets, NaN at tokens without a prediction; None without a critic."""
    value: Tensor | None = None
    """[A, trained heads] critic values before the update; None without a critic."""
    column_index: tuple[int, int] = (0, 0)
    """(index of its trajectory in the columns, index of the segment in the trajectory)."""


@dataclass(frozen=True, slots=True)
class BatchCredit:
    """Credit of a batch: advantages, weights and metrics, returned by `assign_credit`."""

    by_group: list[list[CreditedSegment]]
    """Segments that are trained on, per group."""
    columns: Columns
    """Columns that the credit was computed from."""
    estimate: Credit
    """Result of the estimator."""
    modulated: tuple[tuple[Tensor, Level], ...]
    """(advantages, their level) after each advantage transform, in order."""
    advantages: Tensor
    """[K] advantages of the action tokens, multiplied by the loss weight of their trajectory."""
    loss_weights: Tensor
    """[N] weight of each trajectory in the loss; 0 for those that only count in statistics."""
    sizes: dict[str, float]
    """Mean absolute advantage by trajectory id, before loss weights are applied."""
    metrics: dict[str, float]
    """Metrics of credit assignment, such as `advantage/abs_mean`."""


def assign_credit(
    parts: CreditParts,
    trajectories: Sequence[IndexedTrajectory],
    groups: int,
    columns_of_batch: Callable[[Sequence[IndexedTrajectory]], Columns],
) -> BatchCredit:
    """Compute the advantages of a batch by the functions of a recipe.

    Args:
        parts: Functions that compute credit.
        trajectories: Trajectories of the batch, group by group.
        groups: Number of groups, including those without a trajectory.
        columns_of_batch: Creates the columns of a list of trajectories.

    Raises:
        CreditError: If a function did not return one finite number per trajectory, turn or token.
    """
    metrics: dict[str, float] = {}
    names = {id(function): key for key, function in parts.list_functions()}
    trajectories, weights = _filtered(parts, list(trajectories), columns_of_batch, metrics)
    columns = columns_of_batch(trajectories)
    for level in LEVELS:
        for shape in parts.shaping:
            if annotated_level(shape) == level:
                key = names[id(shape)]
                columns.replace(
                    SHAPED_COLUMNS[level], _check_numbers(key, shape, columns.call(shape), columns.count(level), level)
                )
    result = columns.call(parts.advantage)
    credit = result if isinstance(result, Credit) else Credit(result)
    level = annotated_level(parts.advantage)
    advantages = check_finite("advantage", parts.advantage, credit.advantages, columns.count(level), level)
    modulated = []
    for modulate in parts.advantage_transforms:
        target_level = annotated_level(modulate, "advantages")
        advantages = columns.call(modulate, advantages=columns.expand(advantages, level, target_level))
        advantages = check_finite(names[id(modulate)], modulate, advantages, columns.count(target_level), target_level)
        level = target_level
        modulated.append((advantages, level))
    unmasked = columns.expand(advantages, level, "token")
    per_token = unmasked * columns.expand(weights, "trajectory", "token")
    columns.replace("advantages", per_token)
    metrics["advantage/abs_mean"] = per_token.abs().mean().item() if len(per_token) else 0.0
    metrics["advantage/zero_fraction"] = (per_token == 0).double().mean().item() if len(per_token) else 1.0
    by_group = _by_group(columns, credit, per_token, weights, groups)
    sizes = _sizes(columns, unmasked)
    return BatchCredit(by_group, columns, credit, tuple(modulated), per_token, weights, sizes, metrics)


def compute_critic_targets(columns: Columns, groups: int, *, discount: float = 1.0) -> list[list[CreditedSegment]]:
    """Compute one-step TD targets for groups on which only critics are trained.

    Only heads that predict state values have targets, r + γ V(s'), each with its own values before the update. If
    critics predict probabilities, targets are clamped to [0, 1].

    Args:
        columns: Columns of the trajectories.
        groups: Number of groups, including those without a trajectory.
        discount: Discount γ.

    Returns:
        Segments with targets and advantages of 0, per group.
    """
    heads = [head for head in columns.critics.heads if not head.startswith("slow_")]
    targets = [
        columns.split_by_segment(_place_targets(columns, head, _one_step(columns, head, discount))) for head in heads
    ]
    values = [columns.split_by_segment(_member_values(columns, head)) for head in heads]
    by_group: list[list[CreditedSegment]] = [[] for _ in range(groups)]
    for i, entry in enumerate(columns.trajectories):
        for k, segment in enumerate(entry.segments):
            target, value = (torch.stack([of_head[i][k] for of_head in each], 1).float() for each in (targets, values))
            credited = replace(segment, advantages=(0.0,) * len(segment))
            by_group[entry.number].append(CreditedSegment(credited, target, value, (i, k)))
    return by_group


def _member_values(columns: Columns, head: str) -> Tensor:
    """Return [K] values of one head, without the reduction over its ensemble."""
    return columns.critics.members(head)[0]


def _one_step(columns: Columns, head: str, discount: float) -> Tensor | None:
    head = get_head_kind(head)
    if head not in STATE_VALUES:
        return None
    by_token = VALUE_POSITIONS[head] == "every"
    rewards, run = ("token_rewards", "token_trajectory") if by_token else ("turn_rewards", "trajectory")
    targets = one_step_targets(
        columns[rewards], columns[head], columns[run], columns[f"last_{head}"], discount=discount
    )
    return targets.clamp(0, 1) if columns.critics.probabilities else targets


def check_finite(key: str, function: Callable[..., Any], values: Any, count: int, level: Level) -> Tensor:
    """Convert the result of a credit function to float64 and check that it is finite.

    Args:
        key: Recipe key of the function, for the message.
        function: Function that returned the values.
        values: Returned values.
        count: Expected number of values.
        level: Level of the values: `trajectory`, `turn` or `token`.

    Raises:
        CreditError: If `values` is not a tensor of `count` finite numbers.
    """
    numbers = _check_numbers(key, function, values, count, level)
    wrong = int((~numbers.isfinite()).sum())
    if wrong:
        noun = "value is" if wrong == 1 else "values are"
        raise CreditError(f"{_who(key, function)}: {wrong} of {len(numbers)} {noun} not finite")
    return numbers


def _check_numbers(key: str, function: Callable[..., Any], values: Any, count: int, level: Level) -> Tensor:
    """Convert the result of a credit function to float64 and check its shape.

    Raises:
        CreditError: If `values` is not a tensor of `count` numbers.
    """
    if not isinstance(values, Tensor):
        raise CreditError(f"{_who(key, function)} returned {type(values).__name__}, not a tensor of numbers")
    if values.shape != (count,):
        shape = "×".join(map(str, values.shape)) or "a single"
        raise CreditError(f"{_who(key, function)} returned {shape} numbers, not one for each {level} ({count})")
    return values.detach().double()


def _who(key: str, function: Callable[..., Any]) -> str:
    inner = unwrap_partial(function)
    return f"{key} ({getattr(inner, '__name__', type(inner).__name__)})"


def _sizes(columns: Columns, advantages: Tensor) -> dict[str, float]:
    owner = columns["token_trajectory"]
    zeros = torch.zeros(len(columns.trajectories), dtype=torch.float64)
    sums = zeros.index_add(0, owner, advantages.abs())
    counts = zeros.index_add(0, owner, torch.ones_like(advantages)).clamp(min=1)
    ids = (entry.trajectory.id for entry in columns.trajectories)
    return dict(zip(ids, (sums / counts).tolist(), strict=True))


def _filtered(
    parts: CreditParts,
    trajectories: list[IndexedTrajectory],
    columns_of_batch: Callable[[Sequence[IndexedTrajectory]], Columns],
    metrics: dict[str, float],
) -> tuple[list[IndexedTrajectory], Tensor]:
    """Apply the credit filters and return (remaining trajectories, [N] weight of each in the loss)."""
    filters = parts.filters or {}
    for name, each in filters.items():
        if annotated_removal_scope(each) is RemovalScope.BEFORE_BASELINE:
            columns = columns_of_batch(trajectories)
            stays = check_finite(f'filter "{name}"', each, columns.call(each), len(trajectories), "trajectory") > 0
            metrics[f"credit_filters/{name}_removed_fraction"] = (
                1 - stays.double().mean().item() if len(trajectories) else 0.0
            )
            trajectories = [entry for entry, stay in zip(trajectories, stays.tolist(), strict=True) if stay]
    weights = torch.tensor(
        [float(entry.trajectory.removal is not RemovalScope.LOSS_ONLY) for entry in trajectories]
    ).double()
    columns = columns_of_batch(trajectories)
    for name, each in filters.items():
        if annotated_removal_scope(each) is not RemovalScope.BEFORE_BASELINE:
            counts = check_finite(f'filter "{name}"', each, columns.call(each), len(trajectories), "trajectory")
            metrics[f"credit_filters/{name}_removed_fraction"] = 1 - counts.mean().item() if len(trajectories) else 0.0
            weights = weights * counts
    return trajectories, weights


def _by_group(
    columns: Columns, credit: Credit, advantages: Tensor, weights: Tensor, groups: int
) -> list[list[CreditedSegment]]:
    by_group: list[list[CreditedSegment]] = [[] for _ in range(groups)]
    spread = columns.scatter_to_tokens(advantages)
    heads = [head for head in columns.critics.heads if not head.startswith("slow_")] if credit.targets else []
    targets = [
        columns.split_by_segment(_place_targets(columns, head, credit.targets.get(get_head_kind(head))))
        for head in heads
    ]
    values = [columns.split_by_segment(_member_values(columns, head)) for head in heads]
    for i, (entry, weight) in enumerate(zip(columns.trajectories, weights.tolist(), strict=True)):
        if weight == 0:
            continue
        for k, segment in enumerate(entry.segments):
            credited = replace(segment, advantages=tuple(spread[i][k].tolist()))
            if not heads:
                by_group[entry.number].append(CreditedSegment(credited, column_index=(i, k)))
                continue
            target, value = (torch.stack([of_head[i][k] for of_head in each], 1).float() for each in (targets, values))
            by_group[entry.number].append(CreditedSegment(credited, target, value, (i, k)))
    return by_group


def _place_targets(columns: Columns, head: str, targets: Tensor | None) -> Tensor:
    """Return [K] targets of a head at the action tokens at which it predicts; NaN elsewhere."""
    where = VALUE_POSITIONS[get_head_kind(head)]
    if targets is None:
        return torch.full((len(columns["turn"]),), torch.nan, dtype=torch.float64)
    if where == "every":
        return targets.double()
    at_positions = torch.full((len(columns["turn"]),), torch.nan, dtype=torch.float64)
    positions = columns.critics.find_positions(where)
    at_positions[positions] = targets.double()[columns["turn"][positions]]
    return at_positions
