"""What happens in one step of reinforcement? Everything a method may do, in its order.

    sampled:   task distribution → allocate → start → view → { sample, fork with stop, partner, view of each turn }
               → score → rewrite → refill            (a group at a time, as they come: `rollout/`, `stream.py`)
    learned:   inject → select → stored groups beside them → advantage → (what is only masked) → update → what is
               remembered

Easy to get wrong: an update is made again after a kill, from the same groups. All chance here is a function of run and
step, and what parts remember is in the checkpoint, so it comes to the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from whetstone.contracts import fulfils
from whetstone.learning.protocol import Learner
from whetstone.learning.spec import UpdateBatch
from whetstone.renames import stored_name
from whetstone.rollout import Method, StepOutcome
from whetstone.rollout.optional import LearnsAgain
from whetstone.seeding import derive_random
from whetstone.trajectory import Group

_SHOWN_OF_OTHERS = ("loss/total", "update/tokens", "update/grad_norm", "policy/clip_fraction")
"""Of updates beside a step's own."""


@dataclass(frozen=True, slots=True)
class TrainStepResult:
    """A step that was made."""

    metrics: dict[str, float]
    """Those of parts say what they remembered in it."""
    heard: StepOutcome


def train_step(
    method: Method,
    learner: Learner,
    batch: UpdateBatch,
    passed_over: Sequence[Group],
    *,
    seed: int,
    update: int,
) -> TrainStepResult:
    """Learn from the groups of a step. What parts are to remember of it they are told by `Method.observe`, once
    nothing is planned any more that must not know.

    Args:
        batch: What was sampled for it, and the demonstrations to imitate beside it.
        passed_over: Groups that were sampled for it and did not count.
        seed: Of the recipe.
        update: Its number, from 0.
    """
    groups = _selected(method, batch.groups, seed=seed, update=update)
    stored = tuple(method.stored.groups(update)) if method.stored is not None else ()
    learned = learner.update(_with_stored(method, replace(batch, groups=tuple(groups)), stored))
    metrics = learned.metrics | _stored_pass(method, learner, batch, stored) | _removed(batch.groups, groups)
    trained = [*groups, *stored]
    for name, inject in (method.replay or {}).items():
        if fulfils(inject, LearnsAgain):
            again = inject.again(update, derive_random(seed, "again", name, update))
            metrics |= _second_pass(learner, again, batch.budget_share) if again else {}
            trained += again
    metrics |= method.metrics() | count_provenances(trained)
    played = (*batch.groups, *passed_over)
    return TrainStepResult(
        metrics, StepOutcome(update + 1, played, learned.advantages, derive_random(seed, "hear", update))
    )


def count_provenances(groups: Sequence[Group]) -> dict[str, float]:
    """Count the trajectories of an update and their action tokens, as `provenance/NAME` and `provenance/NAME_tokens`.

    Sums over provenances are the totals of `groups`; a provenance without trajectories is absent.
    """
    metrics: Counter[str] = Counter()
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        name = f"provenance/{trajectory.provenance}"
        metrics[name] += 1
        metrics[f"{name}_tokens"] += trajectory.action_tokens
    return {name: float(count) for name, count in metrics.items()}


def as_learned(method: Method, sampled: Sequence[Group], *, seed: int, update: int) -> Sequence[Group]:
    """The groups credit is given to together: those of an update with what is injected, what is not selected removed,
    and stored ones beside them."""
    groups = _selected(method, sampled, seed=seed, update=update)
    if method.stored is None or method.stored.settings.mode != "joint":
        return groups
    return [*groups, *method.stored.groups(update)]


def _with_stored(method: Method, batch: UpdateBatch, stored: tuple[Group, ...]) -> UpdateBatch:
    """Return the batch of an update next to stored groups, as the `mode` of the stored data specifies."""
    if method.stored is None or not stored:
        return batch
    settings = method.stored.settings
    if settings.mode == "joint":
        return replace(batch, groups=(*batch.groups, *stored))
    if settings.mode == "critic_only":
        return replace(batch, for_critic=stored)
    return replace(batch, outer_rate=settings.outer_rate)


def _stored_pass(method: Method, learner: Learner, batch: UpdateBatch, stored: tuple[Group, ...]) -> dict[str, float]:
    """Update on stored groups if they have updates of their own; return the metrics of stored groups."""
    if method.stored is None or not stored:
        return {}
    settings = method.stored.settings
    rewards = [reward for group in stored for reward in group.rewards]
    offline_metrics = {"offline/groups": float(len(stored)), "offline/reward": fmean(rewards)}
    if settings.mode in ("joint", "critic_only"):
        return offline_metrics
    inner = UpdateBatch(
        stored,
        version=batch.version,
        budget_share=batch.budget_share,
        minibatches=settings.inner_updates,
        outer_rate=settings.outer_rate,
    )
    metrics = learner.update(inner).metrics
    return offline_metrics | {f"offline/{name}": metrics[name] for name in _SHOWN_OF_OTHERS if name in metrics}


def _selected(method: Method, sampled: Sequence[Group], *, seed: int, update: int) -> Sequence[Group]:
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
    """An update of its own, of stored trajectories whose advantage is the part of their score of that name."""
    batch = UpdateBatch(tuple(stored), budget_share=budget_share, recorded_advantages=True)
    metrics = learner.update(batch).metrics
    return {f"second_pass/{name}": metrics[name] for name in _SHOWN_OF_OTHERS if name in metrics}


def _removed(before: Sequence[Group], after: Sequence[Group]) -> dict[str, float]:
    """What injection and selection came to; nothing where there was none."""
    if before is after:
        return {}
    old = {trajectory.id: trajectory.removal for group in before for trajectory in group.trajectories}
    now = [trajectory for group in after for trajectory in group.trajectories]
    injected = sum(trajectory.id not in old for trajectory in now)
    removed = sum(t.removal is not None and old.get(t.id, t.removal) is None for t in now)
    return {"replay/injected": float(injected), "trajectory_filters/removed_fraction": removed / max(1, len(now))}
