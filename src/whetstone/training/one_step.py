"""What happens in one step of reinforcement? Everything a method may do, in its order.

    sampled:   task distribution → allocate → start → view → { sample, fork with stop, partner, view of each turn }
               → score → rewrite → refill            (a group at a time, as they come: `rollout/`, `stream.py`)
    learned:   inject → select → advantage → (what is only masked) → update → what is remembered

Easy to get wrong: an update is made again after a kill, from the same groups. All chance here is a function of run and
step, and what parts remember is in the checkpoint, so it comes to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from whetstone.algorithms import PerTrajectory
from whetstone.recipe import TrainingSettings
from whetstone.rollout import Heard
from whetstone.seeding import derive_random
from whetstone.training.assembly import Assembly
from whetstone.training.credit import CreditParts
from whetstone.training.learner import Learner
from whetstone.training.updates import learn_from
from whetstone.trajectory import Group, Segment


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step that was made."""

    metrics: dict[str, float]
    """Those of parts say what they remembered in it."""
    heard: Heard


def one_step(
    assembly: Assembly,
    learner: Learner,
    sampled: Sequence[Group],
    passed_over: Sequence[Group],
    shown: Sequence[Segment],
    settings: TrainingSettings,
    *,
    update: int,
    version: int | None = None,
) -> Stepped:
    """Learn from the groups of a step. What parts are to remember of it they are told by `Method.hear`, once nothing is
    planned any more that must not know.

    Args:
        passed_over: Groups that were sampled for it and did not count.
        shown: Demonstrations to imitate in the same update.
        update: Its number, from 0.
        version: Of the weights there are; see `learn_from`.
    """
    method, seed = assembly.method, assembly.resolved.recipe.seed
    groups = as_learned(assembly, sampled, update=update)
    learned = learn_from(assembly, learner, groups, shown, settings, version=version)
    metrics = learned.metrics | _removed(sampled, groups)
    for name, inject in (method.inject or {}).items():
        if hasattr(inject, "again"):
            stored = inject.again(update, derive_random(seed, "again", name, update))
            metrics |= _second_pass(assembly, learner, stored, settings) if stored else {}
    metrics |= method.metrics()
    played = (*sampled, *passed_over)
    return Stepped(metrics, Heard(update + 1, played, learned.advantages, derive_random(seed, "hear", update)))


def as_learned(assembly: Assembly, sampled: Sequence[Group], *, update: int) -> Sequence[Group]:
    """The groups of an update with what is injected, and what is not selected removed."""
    method, seed = assembly.method, assembly.resolved.recipe.seed
    groups = sampled
    for name, inject in (method.inject or {}).items():
        groups = [
            inject(group, derive_random(seed, "inject", name, update, place)) for place, group in enumerate(groups)
        ]
    for name, select in (method.select or {}).items():
        groups = select(groups, derive_random(seed, "select", name, update))
    return groups


def _second_pass(
    assembly: Assembly, learner: Learner, stored: Sequence[Group], settings: TrainingSettings
) -> dict[str, float]:
    """An update of its own, of stored trajectories whose advantage is the part of their score of that name."""
    once = settings.model_copy(update={"epochs": 1, "minibatches": 1})
    given = replace(assembly, credit=CreditParts(advantage=_advantage))
    learned = learn_from(given, learner, stored, [], once)
    kept = ("loss", "update/tokens", "update/gradient_norm", "policy/clip_fraction")
    return {f"second_pass/{name}": learned.metrics[name] for name in kept if name in learned.metrics}


def _advantage(advantage: PerTrajectory) -> PerTrajectory:
    return advantage


def _removed(before: Sequence[Group], after: Sequence[Group]) -> dict[str, float]:
    """What injection and selection came to; nothing where there was none."""
    if before is after:
        return {}
    old = {trajectory.id: trajectory.removal for group in before for trajectory in group.trajectories}
    now = [trajectory for group in after for trajectory in group.trajectories]
    injected = sum(trajectory.id not in old for trajectory in now)
    removed = sum(t.removal is not None and old.get(t.id, t.removal) is None for t in now)
    return {"select/injected": float(injected), "select/removed_fraction": removed / max(1, len(now))}
