"""How do the groups of a step become updates? Credit, and one update a minibatch and epoch, with all it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from whetstone.recipe import TrainingSettings
from whetstone.training.assembly import Assembly
from whetstone.training.credit import Credited, credited, credited_by_critic
from whetstone.training.learner import Learner, action_tokens
from whetstone.training.losses import UpdateLoss
from whetstone.trajectory import Author, Group, Segment

_OF_THE_FIRST = {"sampler/mismatch_mean", "sampler/mismatch_max", "sampler/mismatch_kl", "policy/staleness_kl"}


def learn_from(
    assembly: Assembly,
    learner: Learner,
    groups: Sequence[Group],
    shown: Sequence[Segment],
    settings: TrainingSettings,
    *,
    version: int | None = None,
) -> dict[str, float]:
    """One update per minibatch and epoch, each with its share of the groups.

    Args:
        shown: Demonstrations to imitate in the same updates.
        version: Of the weights there are; see `Learner.update`.
    """
    recipe = assembly.resolved.recipe
    temperature, critic = recipe.rollout.temperature, recipe.critic
    if critic is None:
        by_group = credited(assembly, groups)
    else:
        by_group = credited_by_critic(learner, groups, critic, temperature=temperature)
    shares = [
        [each for group in by_group[i :: settings.minibatches] for each in group] for i in range(settings.minibatches)
    ]
    divisors = [sum(action_tokens(each.segment) for each in share) for share in shares]
    if settings.reference_kl == 0 and critic is None:
        # a segment without credit has loss and gradient exactly 0: it counts in the divisor and is not computed
        shares = [[each for each in share if any(each.segment.advantages or ())] for share in shares]
    batches = [_Batch.of(share, shown[i :: settings.minibatches]) for i, share in enumerate(shares)]
    for i, (batch, divisor) in enumerate(zip(batches, divisors, strict=True)):
        batch.divisor = divisor or sum(map(action_tokens, batch.segments))
        if i > 0:  # the first update's old policy is the one being differentiated: the pass itself finds its log-probs
            batch.old = learner.logprobs(batch.segments, temperature=temperature)
        if settings.reference_kl > 0:
            batch.reference = learner.logprobs(batch.segments, temperature=temperature, reference=True)
    totals: dict[str, list[float]] = {}
    for epoch in range(settings.epochs):
        for i, batch in enumerate(batches):
            loss = UpdateLoss(
                assembly.objective,
                batch.old,
                first=epoch == i == 0,
                correction=assembly.correction,
                reference=batch.reference,
                reference_weight=settings.reference_kl,
                targets=batch.targets,
                value_weight=critic.weight * batch.per(batch.predictions) if critic is not None else 0.0,
                imitation_weight=settings.imitation.weight * batch.per(batch.imitated) if settings.imitation else 0.0,
            )
            update = learner.update(
                batch.segments, loss, temperature=temperature, divisor=batch.divisor, version=version
            )
            for name, value in update.items():
                totals.setdefault(name, []).append(value)
    # after the first update the learner is no longer the policy that sampled, so only its first pass can tell
    metrics = {name: values[0] if name in _OF_THE_FIRST else fmean(values) for name, values in totals.items()}
    squared = metrics.pop("correction/weight_squared", 0.0)
    if squared > 0:  # (Σw)² / (n Σw²): 1 where all count alike
        metrics["correction/effective_fraction"] = metrics["correction/weight"] ** 2 / squared
    return metrics


@dataclass(slots=True)
class _Batch:
    """What one update learns from; lists are per segment."""

    segments: list[Segment]
    targets: list[Tensor] | None
    old: list[Tensor]
    reference: list[Tensor] | None = None
    divisor: int = 1
    """Tokens the loss is divided by."""

    @classmethod
    def of(cls, share: Sequence[Credited], shown: Sequence[Segment]) -> _Batch:
        """The policy's own segments, then demonstrations."""
        segments = [*(each.segment for each in share), *shown]
        targets = [each.target for each in share if each.target is not None]
        nothing = [torch.full((action_tokens(segment),), torch.nan) for segment in shown]
        return cls(segments, [*targets, *nothing] if targets else None, [torch.empty(0)] * len(segments))

    @property
    def predictions(self) -> int:
        """How many values the critic is to foretell."""
        return sum(int((~target.isnan()).sum()) for target in self.targets or ())

    @property
    def imitated(self) -> int:
        """How many tokens an expert wrote."""
        return sum(author is Author.EXPERT for segment in self.segments for author in segment.tokens.authors)

    def per(self, count: int) -> float:
        """What turns a sum over the divisor into a mean over `count`."""
        return self.divisor / max(1, count)
