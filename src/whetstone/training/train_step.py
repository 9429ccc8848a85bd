"""One training step of reinforcement: all operations of a method, in their order.

    sampled:   task distribution → allocate → start → view → { sample, fork with stop, partner, view of each turn }
               → score → rewrite → refill            (per group, as they finish: `rollout/`, `group_stream.py`)
    trained:   inject → select → stored groups → advantage → (masks of the loss) → update → observe

Note:
    A resumed run repeats an update with the same groups. All randomness here is a function of run and step, and the
    state of components is in the checkpoint, so the result is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from whetstone.capabilities import implements_protocol
from whetstone.learning.protocol import Learner
from whetstone.learning.spec import UpdateBatch
from whetstone.renames import stored_name
from whetstone.rollout import MethodComponents, StepOutcome
from whetstone.rollout.optional_protocols import SecondPass
from whetstone.seeding import derive_random
from whetstone.trajectory import Group, Trajectory

_SHOWN_OF_OTHERS = ("loss/total", "update/tokens", "update/grad_norm", "policy/clip_fraction")
"""Metrics that are reported of the additional updates of a step."""


@dataclass(frozen=True, slots=True)
class TrainStepResult:
    """Result of `train_step`."""

    metrics: dict[str, float]
    """Metrics of the step; those of stateful components are from before they observe the step."""
    outcome: StepOutcome
    """Outcome of the step, which stateful components observe."""


def train_step(
    method: MethodComponents,
    learner: Learner,
    batch: UpdateBatch,
    filtered_groups: Sequence[Group],
    mixed: Mapping[str, Sequence[Group]],
    *,
    seed: int,
    update: int,
) -> TrainStepResult:
    """Make the updates of a training step on its groups.

    Called in the compute thread. `MethodComponents.observe_step` receives the outcome after further plans are made.

    Args:
        method: Components of the method: replay, filters, sources.
        learner: Learner of the policy.
        batch: Groups that were sampled for the step, and demonstrations to imitate.
        filtered_groups: Groups that were sampled for the step and rejected by dynamic sampling.
        mixed: Groups of other sources, by name of the source.
        seed: Random seed of the recipe.
        update: Number of the update, from 0.
    """
    groups = _selected(method, batch.groups, seed=seed, update=update)
    learned = learner.update(_with_sources(method, replace(batch, groups=tuple(groups)), mixed))
    metrics = learned.metrics | _source_metrics(mixed) | _removed(batch.groups, groups)
    metrics |= _second_update(method, learner, batch, mixed)
    trained = [*groups, *(group for each in mixed.values() for group in each)]
    for name, inject in (method.replay or {}).items():
        if implements_protocol(inject, SecondPass):
            second_groups = inject.second_pass_groups(update, derive_random(seed, "again", name, update))
            metrics |= _second_pass(learner, second_groups, batch.budget_share) if second_groups else {}
            trained += second_groups
    metrics |= method.metrics() | count_provenances(t for group in trained for t in group.trajectories)
    played = (*batch.groups, *filtered_groups)
    return TrainStepResult(
        metrics, StepOutcome(update + 1, played, learned.advantages, derive_random(seed, "hear", update))
    )


def count_provenances(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Count the trajectories and action tokens of an update by provenance.

    Sums over provenances are the totals; a provenance without trajectories is absent.

    Args:
        trajectories: Trajectories of the update.

    Returns:
        Metrics `provenance/NAME` and `provenance/NAME_tokens`.
    """
    metrics: Counter[str] = Counter()
    for trajectory in trajectories:
        name = f"provenance/{trajectory.provenance}"
        metrics[name] += 1
        metrics[f"{name}_tokens"] += trajectory.action_tokens
    return {name: float(count) for name, count in metrics.items()}


def training_groups(
    method: MethodComponents, sampled: Sequence[Group], mixed: Mapping[str, Sequence[Group]], *, seed: int, update: int
) -> Sequence[Group]:
    """Return the groups whose advantages are computed together.

    These are the sampled groups after replay and filters, and the groups of other sources with the mode `joint`.

    Args:
        method: Components of the method.
        sampled: Sampled groups.
        mixed: Groups of other sources, by name of the source.
        seed: Random seed of the recipe.
        update: Number of the update, from 0.
    """
    return [*_selected(method, sampled, seed=seed, update=update), *_used_as("joint", method, mixed)]


def _used_as(mode: str, method: MethodComponents, mixed: Mapping[str, Sequence[Group]]) -> tuple[Group, ...]:
    return tuple(group for name, groups in mixed.items() if method.sources[name].mode == mode for group in groups)


def _with_sources(method: MethodComponents, batch: UpdateBatch, mixed: Mapping[str, Sequence[Group]]) -> UpdateBatch:
    """Return the batch with the groups of other sources, as the mode of each source specifies."""
    joint, for_critic = (_used_as(mode, method, mixed) for mode in ("joint", "critic_only"))
    batch = replace(batch, groups=(*batch.groups, *joint), for_critic=for_critic)
    mixture = method.sources["stored"].mixture if _used_as("alternating", method, mixed) else None
    return batch if mixture is None else replace(batch, outer_rate=mixture.outer_rate)


def _source_metrics(mixed: Mapping[str, Sequence[Group]]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, groups in mixed.items():
        rewards = [reward for group in groups for reward in group.rewards]
        area = "offline" if name == "stored" else f"sources/{name}"
        metrics |= {f"{area}/groups": float(len(groups))} if groups or area != "offline" else {}
        metrics |= {f"{area}/reward": fmean(rewards)} if rewards else {}
    return metrics


def _second_update(
    method: MethodComponents, learner: Learner, batch: UpdateBatch, mixed: Mapping[str, Sequence[Group]]
) -> dict[str, float]:
    """Make the separate update on stored groups of an `alternating` mixture, and return its metrics."""
    groups = _used_as("alternating", method, mixed)
    settings = method.sources["stored"].mixture if groups else None
    if settings is None:
        return {}
    inner = UpdateBatch(
        groups,
        version=batch.version,
        budget_share=batch.budget_share,
        minibatches=settings.inner_updates,
        outer_rate=settings.outer_rate,
    )
    metrics = learner.update(inner).metrics
    return {f"offline/{name}": metrics[name] for name in _SHOWN_OF_OTHERS if name in metrics}


def _selected(method: MethodComponents, sampled: Sequence[Group], *, seed: int, update: int) -> Sequence[Group]:
    groups = sampled
    for name, inject in (method.replay or {}).items():
        groups = [
            inject(group, derive_random(seed, "inject", name, update, place)) for place, group in enumerate(groups)
        ]
    for name, select in (method.trajectory_filters or {}).items():
        groups = select(
            groups,
            derive_random(
                seed, "select", stored_name(f"trajectory_filters.{name}").removeprefix("trajectory_filters."), update
            ),
        )
    return groups


def _second_pass(learner: Learner, stored: Sequence[Group], budget_share: float) -> dict[str, float]:
    """Make a separate update on stored trajectories with the advantages in their scores."""
    batch = UpdateBatch(tuple(stored), budget_share=budget_share, recorded_advantages=True)
    metrics = learner.update(batch).metrics
    return {f"second_pass/{name}": metrics[name] for name in _SHOWN_OF_OTHERS if name in metrics}


def _removed(before: Sequence[Group], after: Sequence[Group]) -> dict[str, float]:
    """Return metrics of replay and trajectory filters; empty if there are none."""
    if before is after:
        return {}
    old = {trajectory.id: trajectory.removal for group in before for trajectory in group.trajectories}
    now = [trajectory for group in after for trajectory in group.trajectories]
    injected = sum(trajectory.id not in old for trajectory in now)
    removed = sum(t.removal is not None and old.get(t.id, t.removal) is None for t in now)
    return {"replay/injected": float(injected), "trajectory_filters/removed_fraction": removed / max(1, len(now))}
