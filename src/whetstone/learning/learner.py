"""How does a policy learn from a step's groups? Credit, and one update a minibatch and epoch.

Easy to get wrong: the old policy of a step's first update is the one being differentiated, so the pass itself finds its
log-probs; every later update needs those from before the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from itertools import count as counting
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from whetstone.algorithms import PerTrajectory, TokenLoss, supervised
from whetstone.algorithms.objectives import interpolated, pessimistic
from whetstone.learning.agreement import check_agreement, disagreement, no_question
from whetstone.learning.columns import STATE_VALUES, Columns, by_name, kind_of_head
from whetstone.learning.credit import BatchCredit, CreditedSegment, CreditParts, give_credit, value_lessons
from whetstone.learning.dynamics import dynamics_gaps
from whetstone.learning.gradient_noise import interval_steps, sample_part
from whetstone.learning.losses import UpdateLoss
from whetstone.learning.minibatch import Minibatch, minibatches_of, spans_passes
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.noise import EmbeddingNoise
from whetstone.learning.packing import MicroBatch
from whetstone.learning.sequence_logprobs import coefficients, sums_level, sums_of
from whetstone.learning.spec import LearningSpec, UpdateBatch, UpdateResult
from whetstone.learning.token_index import IndexedTrajectory, index_groups, observed_fraction
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.policies import Critic
from whetstone.recipe import CriticSettings
from whetstone.seeding import derive_seed
from whetstone.trajectory import Segment

_OF_AN_UPDATE = ("loss/", "update/", "throughput/", "memory/")
"""What is one number an update; all else is a mean over its tokens."""


class LocalLearner:
    """A learner in this process; see `protocol.Learner`.

    Args:
        trainer: The policy and its optimiser.
        spec: How groups are learned from; None where nothing but demonstrations is.
    """

    def __init__(self, trainer: ModelTrainer, spec: LearningSpec | None = None) -> None:
        self.trainer = trainer
        self._spec = spec

    @property
    def spec(self) -> LearningSpec:
        """How groups are learned from."""
        if self._spec is None:
            raise ValueError("this learner imitates only")
        return self._spec

    @property
    def token_budget(self) -> int:
        """See `protocol.Learner`."""
        return self.trainer.token_budget

    def update(self, batch: UpdateBatch) -> UpdateResult:
        """One update per minibatch and epoch, each with its share of the groups; see `protocol.Learner`."""
        outer = batch.outer_rate != 1
        before = [parameter.detach().clone() for parameter in self.trainer.policy.trained()] if outer else []
        spec, trainer = self._spec_of(batch), self.trainer
        settings, critic = spec.settings, trainer.policy.critic
        trainer.optimizers.share = batch.budget_share
        held = index_groups(batch.groups, observations=settings.train_on_observations)
        columns, stored = partial(batch_columns, spec, trainer), index_groups(batch.for_critic)
        warming = spec.critic is not None and trainer.optimizers.done < spec.critic.warmup_updates

        def credit() -> tuple[BatchCredit, list[Minibatch]]:
            given = give_credit(spec.credit, held, len(batch.groups), columns)
            taught: list[list[CreditedSegment]] = []
            if stored and settings.offline_mixture is not None:
                discount = settings.offline_mixture.critic_discount
                taught = value_lessons(columns(stored), len(batch.for_critic), discount=discount)
            gaps = None
            if taught and settings.offline_mixture is not None and settings.offline_mixture.simulation_weight > 0:
                gaps = dynamics_gaps(given.columns.held, stored)
            count = settings.minibatches
            return given, minibatches_of(spec, trainer, given, batch.demonstrations, count, taught, gaps)

        given, minibatches = credit()
        noises = _noises(spec, trainer.optimizers.done)
        for _ in range(spec.critic.epochs - 1 if spec.critic is not None else 0):
            for each in minibatches:
                loss = each.loss(spec, trainer, first=True, critic_only=True)
                trainer.step(each.segments, loss, **self._scale_of(each), critic_only=True, noise=next(noises))
                _follow(critic, spec.critic)
            given, minibatches = credit()
        metrics = dict(given.metrics)
        if settings.train_on_observations:
            metrics["update/observation_fraction"] = observed_fraction(held)
        if spec.critic is not None and spec.critic.ensemble_size > 1 and any(map(_in_states, trainer.heads)):
            metrics["value/ensemble_std"] = given.columns["value_deviations"].mean().item() if held else 0.0
        if trainer.process is not None:
            metrics |= trainer.process.learn(given.columns)
        reports: list[tuple[int, dict[str, float]]] = []
        entropies: dict[int, tuple[float, int]] = {}
        groups = given.by_group[:: settings.minibatches]
        for epoch in range(settings.epochs):
            for i, each in enumerate(minibatches):
                first = epoch == i == 0
                loss = each.loss(spec, trainer, first=first, critic_only=warming)
                said = {} if warming else self._with_batch(spec, given, each, loss)
                agreed = partial(check_agreement, minibatches, loss, batch.version, settings) if first else no_question
                noise = next(noises)
                measured = first and not warming and self._measures_noise(spec, batch, len(groups))
                part = sample_part(len(groups), seed=spec.seed, step=trainer.optimizers.done) if measured else []
                small = self._part_norm(each, loss, groups, part, noise)
                options = {"critic_only": warming, "agreed": agreed, "noise": noise, **self._scale_of(each)}
                update = trainer.step(each.segments, loss, flat=each.flat, **options)
                _follow(critic, spec.critic)
                _add(entropies, loss.entropy_by_turn)
                if part and "update/grad_norm" in update and math.isfinite(small):
                    squares = ((small * len(groups) / len(part)) ** 2, update["update/grad_norm"] ** 2)
                    update |= trainer.gradient_noise.add(*squares, part=len(part), count=len(groups))
                reports.append((each.own_tokens, update | said))
        if entropies:
            trainer.entropies.add(entropies)
        metrics |= _over_updates(reports) | disagreement(minibatches, batch.version)
        squared = metrics.pop("importance/weight_squared", 0.0)
        if squared > 0:  # (Σw)² / (n Σw²): 1 where all count alike
            metrics["importance/effective_sample_fraction"] = metrics["importance/weight_mean"] ** 2 / squared
        if outer:
            self._interpolate(before, batch.outer_rate)
        return UpdateResult(metrics, given.sizes)

    def look(self, batch: UpdateBatch) -> dict[str, float]:
        """See `protocol.LooksAhead`."""
        spec, trainer = self.spec, self.trainer
        held, columns = index_groups(batch.groups), partial(batch_columns, spec, trainer)
        given = give_credit(spec.credit, held, len(batch.groups), columns)
        (whole,) = minibatches_of(spec, trainer, given, (), 1)
        loss = whole.loss(spec, trainer, first=True)
        said = self._with_batch(spec, given, whole, loss)
        found = trainer.look(whole.segments, loss, temperature=spec.temperature, divisor=whole.divisor)
        whole.before = whole.before or list(loss.old)
        return found | said | disagreement([whole], batch.version)

    def imitate(self, segments: Sequence[Segment]) -> UpdateResult:
        """See `protocol.Learner`."""
        return UpdateResult(self.trainer.step(segments, _imitation))

    def end_step(self) -> None:
        """See `protocol.Learner`."""
        self.trainer.optimizers.advance()
        if self._spec is None or self._spec.settings.reference_sync_steps is None:
            return
        if self.trainer.optimizers.done % self._spec.settings.reference_sync_steps == 0:
            self.trainer.move_reference(self._spec.settings.reference_mixup_alpha)

    def weights(self) -> Mapping[str, Tensor]:
        """See `protocol.Learner`."""
        return dict(self.trainer.policy.model.named_parameters())

    def state_dict(self) -> dict[str, Any]:
        """See `protocol.Learner`."""
        return self.trainer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `protocol.Learner`."""
        self.trainer.load_state_dict(state)

    def _spec_of(self, batch: UpdateBatch) -> LearningSpec:
        if batch.minibatches is not None:
            changed = self.spec.settings.model_copy(update={"minibatches": batch.minibatches})
            return replace(self.spec, settings=changed)
        if not batch.recorded_advantages:
            return self.spec
        once = self.spec.settings.model_copy(update={"epochs": 1, "minibatches": 1})
        return replace(self.spec, settings=once, credit=CreditParts(advantage=_recorded))

    def _measures_noise(self, spec: LearningSpec, batch: UpdateBatch, groups: int) -> bool:
        """Return whether this step measures `gradient_noise`: now and then, if only groups make up its gradient."""
        others = batch.demonstrations or batch.for_critic or batch.recorded_advantages
        on = spec.settings.measure_noise_scale and groups > 1 and not others
        return on and self.trainer.optimizers.done % interval_steps(groups) == 0

    def _part_norm(
        self,
        batch: Minibatch,
        loss: UpdateLoss,
        groups: Sequence[Sequence[CreditedSegment]],
        part: Sequence[int],
        noise: EmbeddingNoise | None,
    ) -> float:
        """Return the norm of the sum of the gradients of some groups, in units of the update's gradient."""
        owners = chain.from_iterable([number] * len(group) for number, group in enumerate(groups))
        places = [i for i, owner in enumerate(owners) if owner in part and i not in batch.flat]
        if not places:
            return 0.0
        segments, divisor = [batch.segments[i] for i in places], batch.divisor
        return self.trainer.gradient_norm(
            segments, loss.part(places), temperature=self.spec.temperature, divisor=divisor, noise=noise
        )

    def _scale_of(self, batch: Minibatch) -> dict[str, Any]:
        """Return the temperature and the divisor of a step on a minibatch."""
        return {"temperature": self.spec.temperature, "divisor": batch.divisor}

    def _interpolate(self, before: Sequence[Tensor], rate: float) -> None:
        """Move the weights only by a fraction of an update; see `UpdateBatch.outer_rate`."""
        with torch.no_grad():
            for parameter, was in zip(self.trainer.policy.trained(), before, strict=True):
                parameter.copy_(interpolated(was, parameter, rate=rate))
        self.trainer.optimizers.refresh()

    def _with_batch(
        self, spec: LearningSpec, given: BatchCredit, batch: Minibatch, loss: UpdateLoss
    ) -> dict[str, float]:
        """Add to a loss the terms that are computed over the whole update first. Returns metrics."""
        loss.usual_entropies = self.trainer.entropies.usual()
        metrics = {}
        if sums_level(spec.objective) is not None:
            metrics = _of_sums(spec, self.trainer, given, batch, loss)
        if spans_passes(spec, batch):
            show = partial(self.trainer.show, batch.segments, temperature=spec.temperature)
            loss.compute_whole(batch.segments, show)
        return metrics


def batch_columns(spec: LearningSpec, trainer: ModelTrainer | None, held: Sequence[IndexedTrajectory]) -> Columns:
    """The columns of trajectories in this run."""
    step, sources = trainer.optimizers.done if trainer is not None else 0, spec.column_sources
    return Columns(
        held,
        learner=trainer,
        scorer=trainer.process.learner if trainer is not None and trainer.process is not None else None,
        temperature=spec.temperature,
        chat=sources.chat,
        roles=sources.roles,
        teacher_reads=sources.teacher_reads,
        draw=torch.Generator().manual_seed(derive_seed(spec.seed, "columns", step) % 2**63),
        added=by_name(sources.added),
        believed=_believed(spec.critic),
    )


def _imitation(outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
    return supervised(outputs.logprobs)


def _believed(settings: CriticSettings | None) -> Callable[[Tensor], Tensor] | None:
    return None if settings is None else partial(pessimistic, by=settings.pessimism, strength=settings.pessimism_coef)


def _noises(spec: LearningSpec, step: int) -> Iterator[EmbeddingNoise | None]:
    """For each update of a step that of its second pass; None where there is none."""
    smooth = spec.settings.consistency_regularization
    for number in counting():
        seed = derive_seed(spec.seed, "smoothness", step, number)
        yield None if smooth is None else EmbeddingNoise(smooth.noise, seed)


def _in_states(head: str) -> bool:
    """Whether a head says what a state is worth."""
    return kind_of_head(head) in STATE_VALUES


def _follow(critic: Critic | None, settings: CriticSettings | None) -> None:
    if critic is not None and settings is not None:
        critic.follow(settings.target_update_rate)


def _add(entropies: dict[int, tuple[float, int]], found: Mapping[int, tuple[float, int]]) -> None:
    for turn, (total, count) in found.items():
        before = entropies.get(turn, (0.0, 0))
        entropies[turn] = (before[0] + total, before[1] + count)


def _recorded(advantage: PerTrajectory) -> PerTrajectory:
    return advantage


def _over_updates(reports: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """What the updates of a step came to: means over the policy's tokens, or over updates where a number is of one.

    Args:
        reports: (tokens of the policy, metrics) of each.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(chain.from_iterable(report for _, report in reports)):
        said = [(tokens, report[name]) for tokens, report in reports if name in report]
        weights = [0 if name.startswith(_OF_AN_UPDATE) else tokens for tokens, _ in said]
        values = [value for _, value in said]
        found[name] = fmean(values, weights) if any(weights) else fmean(values)
    return found


def _of_sums(
    spec: LearningSpec, trainer: ModelTrainer, given: BatchCredit, batch: Minibatch, loss: UpdateLoss
) -> dict[str, float]:
    """Make an objective on sums one on tokens, at the present weights. Returns what to report."""
    now = trainer.logprobs(batch.segments, temperature=spec.temperature)
    count = len(batch.credited)
    logprobs = {"learner": now[:count], "old": batch.old[:count]}
    if "reference_logprobs" in batch.columns:
        logprobs["reference"] = batch.columns["reference_logprobs"][:count]
    level = sums_level(spec.objective)
    per_token, value, metrics = coefficients(spec.objective, sums_of(given.columns, batch.placed, level), logprobs)
    nothing = [torch.zeros(len(old)) for old in batch.old[count:]]
    of_each = value * batch.divisor / max(1, sum(map(len, per_token)))
    shares = [torch.full((len(of),), of_each) for of in per_token]
    loss.columns = {
        **loss.columns,
        "coefficients": [*(of * batch.divisor for of in per_token), *nothing],
        "shares": [*shares, *nothing],
    }
    loss.terms = [replace(loss.terms[0], function=_by_coefficients), *loss.terms[1:]]
    return metrics


def _by_coefficients(learner_logprobs: Tensor, coefficients: Tensor, shares: Tensor) -> TokenLoss:
    """A loss of sums at its tokens: in value an equal share each, in gradient what each sum is pushed by."""
    return TokenLoss(shares + coefficients * (learner_logprobs - learner_logprobs.detach()), {})
