"""Who gets the credit? Rewards become one number for each action token, in six pieces named by the recipe.

    filters → shaping → estimator (return, baseline, scale, blend) → advantage transforms → tokens

Each is a function that names the columns it reads (`columns/`).

Easy to get wrong: trajectories that are removed from training still count in what the others are compared with,
unless they were removed before the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whetstone.algorithms import Credit, Level, level_of, removal_scope_of
from whetstone.algorithms.returns import one_step_ahead
from whetstone.errors import CreditError
from whetstone.learning.columns import STATE_VALUES, VALUE_POSITIONS, Columns, kind_of_head
from whetstone.learning.token_index import IndexedTrajectory
from whetstone.plugins import unbound
from whetstone.trajectory import RemovalScope, Segment

LEVELS: tuple[Level, ...] = ("trajectory", "turn", "token")
"""From coarse to fine."""
REWARDS_OF: dict[Level, str] = {"trajectory": "outcomes", "turn": "process_rewards", "token": "token_rewards"}
"""What a function that shapes rewards of a level takes the place of."""


@dataclass(frozen=True, slots=True)
class CreditParts:
    """What credit is made of in a recipe."""

    advantage: Callable[..., Any]
    """Columns → advantages, or `Credit`."""
    shaping: Sequence[Callable[..., Any]] = ()
    """Columns → rewards that take the place of those of its level."""
    advantage_transforms: Sequence[Callable[..., Any]] = ()
    """(advantages, columns) → advantages."""
    filters: Mapping[str, Callable[..., Any]] | None = None
    """By name: columns → which trajectories stay, and how much they count."""

    def every(self) -> list[tuple[str, Callable[..., Any]]]:
        """(key of the recipe, function) of each."""
        functions = [("advantage", self.advantage)]
        functions += [(f"reward_shaping.{k}", each) for k, each in enumerate(self.shaping)]
        functions += [(f"advantage_transforms.{k}", each) for k, each in enumerate(self.advantage_transforms)]
        return functions + [(f"credit_filters.{k}", each) for k, each in enumerate((self.filters or {}).values())]


@dataclass(frozen=True, slots=True)
class CreditedSegment:
    """A segment and what is to be learned at each of its action tokens."""

    segment: Segment
    """With advantages."""
    target: Tensor | None = None
    """[A, heads that are trained] the critic's targets, NaN where it predicts nothing; None without a critic."""
    value: Tensor | None = None
    """[A, heads that are trained] what it said before the update."""
    placed: tuple[int, int] = (0, 0)
    """(number of its trajectory among the columns', number of the segment there)."""


@dataclass(frozen=True, slots=True)
class BatchCredit:
    """The credit of a batch."""

    by_group: list[list[CreditedSegment]]
    """The segments of each group that are trained on."""
    columns: Columns
    """What it was made of."""
    said: Credit
    """What the estimator said."""
    modulated: tuple[tuple[Tensor, Level], ...]
    """(advantages, one of what) after each advantage transform."""
    advantages: Tensor
    """[K]"""
    kept: Tensor
    """[N] what each trajectory counts for in the loss; 0 for those that only count in statistics."""
    sizes: dict[str, float]
    """By trajectory, the mean size of its advantages before anything was masked."""
    metrics: dict[str, float]


def give_credit(
    parts: CreditParts,
    held: Sequence[IndexedTrajectory],
    groups: int,
    columns_of_batch: Callable[[Sequence[IndexedTrajectory]], Columns],
) -> BatchCredit:
    """Credit for a batch.

    Args:
        held: Its trajectories, group by group.
        groups: How many groups there are, those without a trajectory among them.
        columns_of_batch: Makes columns of trajectories.

    Raises:
        CreditError: A function did not say one finite number for each trajectory, turn or token.
    """
    metrics: dict[str, float] = {}
    names = {id(function): key for key, function in parts.every()}
    held, weights = _filtered(parts, list(held), columns_of_batch, metrics)
    columns = columns_of_batch(held)
    for level in LEVELS:
        for shape in parts.shaping:
            if level_of(shape) == level:
                key = names[id(shape)]
                columns.replaced(
                    REWARDS_OF[level], _check_numbers(key, shape, columns.ask(shape), columns.count(level), level)
                )
    said = columns.ask(parts.advantage)
    credit = said if isinstance(said, Credit) else Credit(said)
    level = level_of(parts.advantage)
    advantages = check_finite("advantage", parts.advantage, credit.advantages, columns.count(level), level)
    modulated = []
    for modulate in parts.advantage_transforms:
        wanted = level_of(modulate, "advantages")
        advantages = columns.ask(modulate, advantages=columns.spread(advantages, level, wanted))
        advantages = check_finite(names[id(modulate)], modulate, advantages, columns.count(wanted), wanted)
        level = wanted
        modulated.append((advantages, level))
    unmasked = columns.spread(advantages, level, "token")
    per_token = unmasked * columns.spread(weights, "trajectory", "token")
    columns.replaced("advantages", per_token)
    metrics["advantage/abs_mean"] = per_token.abs().mean().item() if len(per_token) else 0.0
    metrics["advantage/zero_fraction"] = (per_token == 0).double().mean().item() if len(per_token) else 1.0
    by_group = _by_group(columns, credit, per_token, weights, groups)
    sizes = _sizes(columns, unmasked)
    return BatchCredit(by_group, columns, credit, tuple(modulated), per_token, weights, sizes, metrics)


def value_lessons(columns: Columns, groups: int, *, discount: float = 1.0) -> list[list[CreditedSegment]]:
    """What critics, and nothing else, learn from stored groups: one step ahead, by what they said before the update.

    State values alone have such targets, r + γ V(s'), each head its own; where a critic says probabilities they are
    kept within [0, 1].

    Args:
        groups: How many there are, those without a trajectory among them.
        discount: γ.
    """
    heads = [head for head in columns.heads if not head.startswith("slow_")]
    targets = [columns.at_actions(_asked(columns, head, _one_step(columns, head, discount))) for head in heads]
    values = [columns.at_actions(_of_member(columns, head)) for head in heads]
    found: list[list[CreditedSegment]] = [[] for _ in range(groups)]
    for i, held in enumerate(columns.held):
        for k, segment in enumerate(held.segments):
            target, value = (torch.stack([of_head[i][k] for of_head in each], 1).float() for each in (targets, values))
            made = replace(segment, advantages=(0.0,) * len(segment))
            found[held.number].append(CreditedSegment(made, target, value, (i, k)))
    return found


def _of_member(columns: Columns, head: str) -> Tensor:
    """[K] what one head says, whatever is believed of an ensemble."""
    return columns.members(head)[0]


def _one_step(columns: Columns, head: str, discount: float) -> Tensor | None:
    head = kind_of_head(head)
    if head not in STATE_VALUES:
        return None
    by_token = VALUE_POSITIONS[head] == "every"
    rewards, run = ("token_rewards", "token_trajectory") if by_token else ("turn_rewards", "trajectory")
    found = one_step_ahead(columns[rewards], columns[head], columns[run], columns[f"last_{head}"], discount=discount)
    return found.clamp(0, 1) if columns.probabilities else found


def check_finite(key: str, function: Callable[..., Any], values: Any, count: int, level: Level) -> Tensor:
    """Return the values of a function in float64.

    Raises:
        CreditError: They are not one finite number for each of its level.
    """
    found = _check_numbers(key, function, values, count, level)
    wrong = int((~found.isfinite()).sum())
    if wrong:
        said = "value is" if wrong == 1 else "values are"
        raise CreditError(f"{_who(key, function)}: {wrong} of {len(found)} {said} not finite")
    return found


def _check_numbers(key: str, function: Callable[..., Any], values: Any, count: int, level: Level) -> Tensor:
    """Return the values of a function in float64.

    Raises:
        CreditError: They are not one number for each of its level.
    """
    if not isinstance(values, Tensor):
        raise CreditError(f"{_who(key, function)} returned {type(values).__name__}, not a tensor of numbers")
    if values.shape != (count,):
        shape = "×".join(map(str, values.shape)) or "a single"
        raise CreditError(f"{_who(key, function)} returned {shape} numbers, not one for each {level} ({count})")
    return values.detach().double()


def _who(key: str, function: Callable[..., Any]) -> str:
    inner = unbound(function)
    return f"{key} ({getattr(inner, '__name__', type(inner).__name__)})"


def _sizes(columns: Columns, advantages: Tensor) -> dict[str, float]:
    owner = columns["token_trajectory"]
    zeros = torch.zeros(len(columns.held), dtype=torch.float64)
    sums = zeros.index_add(0, owner, advantages.abs())
    counts = zeros.index_add(0, owner, torch.ones_like(advantages)).clamp(min=1)
    ids = (held.trajectory.id for held in columns.held)
    return dict(zip(ids, (sums / counts).tolist(), strict=True))


def _filtered(
    parts: CreditParts,
    held: list[IndexedTrajectory],
    columns_of_batch: Callable[[Sequence[IndexedTrajectory]], Columns],
    metrics: dict[str, float],
) -> tuple[list[IndexedTrajectory], Tensor]:
    """(trajectories that exist, [N] what each counts for in the loss)."""
    filters = parts.filters or {}
    for name, each in filters.items():
        if removal_scope_of(each) is RemovalScope.BEFORE_BASELINE:
            columns = columns_of_batch(held)
            stays = check_finite(f'filter "{name}"', each, columns.ask(each), len(held), "trajectory") > 0
            metrics[f"credit_filters/{name}_removed_fraction"] = 1 - stays.double().mean().item() if len(held) else 0.0
            held = [one for one, stay in zip(held, stays.tolist(), strict=True) if stay]
    weights = torch.tensor([float(one.trajectory.removal is not RemovalScope.LOSS_ONLY) for one in held]).double()
    columns = columns_of_batch(held)
    for name, each in filters.items():
        if removal_scope_of(each) is not RemovalScope.BEFORE_BASELINE:
            counts = check_finite(f'filter "{name}"', each, columns.ask(each), len(held), "trajectory")
            metrics[f"credit_filters/{name}_removed_fraction"] = 1 - counts.mean().item() if len(held) else 0.0
            weights = weights * counts
    return held, weights


def _by_group(
    columns: Columns, credit: Credit, advantages: Tensor, weights: Tensor, groups: int
) -> list[list[CreditedSegment]]:
    found: list[list[CreditedSegment]] = [[] for _ in range(groups)]
    spread = columns.scattered(advantages)
    heads = [head for head in columns.heads if not head.startswith("slow_")] if credit.targets else []
    targets = [columns.at_actions(_asked(columns, head, credit.targets.get(kind_of_head(head)))) for head in heads]
    values = [columns.at_actions(_of_member(columns, head)) for head in heads]
    for i, (held, weight) in enumerate(zip(columns.held, weights.tolist(), strict=True)):
        if weight == 0:
            continue
        for k, segment in enumerate(held.segments):
            made = replace(segment, advantages=tuple(spread[i][k].tolist()))
            if not heads:
                found[held.number].append(CreditedSegment(made, placed=(i, k)))
                continue
            target, value = (torch.stack([of_head[i][k] for of_head in each], 1).float() for each in (targets, values))
            found[held.number].append(CreditedSegment(made, target, value, (i, k)))
    return found


def _asked(columns: Columns, head: str, targets: Tensor | None) -> Tensor:
    """[K] targets of a head at the action tokens where it is asked, NaN at the others."""
    where = VALUE_POSITIONS[kind_of_head(head)]
    if targets is None:
        return torch.full((len(columns["turn"]),), torch.nan, dtype=torch.float64)
    if where == "every":
        return targets.double()
    found = torch.full((len(columns["turn"]),), torch.nan, dtype=torch.float64)
    asked = columns.asked_at(where)
    found[asked] = targets.double()[columns["turn"][asked]]
    return found
