"""Learner that updates a policy on the groups of a step: credit, old log-probs, minibatches and epochs.

Before the first update of a step is applied, the sampler's log-probs are compared with the learner's
(`check_mismatch`).

Note:
    In the first update of a step the old policy is the one being differentiated, so its forward pass yields the old
    log-probs. Every later update needs log-probs from before the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from itertools import count as counting
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from whetstone.algorithms import PerTrajectory, TokenLoss, mismatch_metrics, supervised
from whetstone.algorithms.objectives import pessimistic_value, reptile_step
from whetstone.errors import MismatchError
from whetstone.learning.columns import STATE_VALUES, Columns, collect_columns, get_head_kind
from whetstone.learning.credit_assignment import (
    BatchCredit,
    CreditedSegment,
    CreditParts,
    assign_credit,
    compute_critic_targets,
)
from whetstone.learning.dynamics_discriminator import dynamics_gaps
from whetstone.learning.embedding_noise import EmbeddingNoise
from whetstone.learning.gradient_noise import interval_steps, sample_part
from whetstone.learning.losses import UpdateLoss
from whetstone.learning.minibatch import Minibatch, spans_passes, split_minibatches
from whetstone.learning.model_trainer import ModelTrainer, get_action_positions
from whetstone.learning.packing import MicroBatch
from whetstone.learning.sequence_logprobs import build_sequence_logprobs, compute_coefficients, get_sequence_level
from whetstone.learning.spec import LearningSpec, UpdateBatch, UpdateResult
from whetstone.learning.token_index import IndexedTrajectory, index_groups, observed_fraction
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.policies import Critic
from whetstone.recipe import CriticSettings, ReinforcementSettings
from whetstone.seeding import derive_seed
from whetstone.trajectory import Author, Segment

_PER_UPDATE = ("loss/", "update/", "throughput/", "memory/")
"""Prefixes of metrics that are averaged over the updates of a step; all others are averaged over tokens."""


class LocalLearner:
    """Learner in this process; see `protocol.Learner`.

    Args:
        trainer: Policy in training with its optimizer.
        spec: Specification of the updates on groups; None: the learner only imitates.
    """

    def __init__(self, trainer: ModelTrainer, spec: LearningSpec | None = None) -> None:
        self.trainer = trainer
        self._spec = spec

    @property
    def spec(self) -> LearningSpec:
        """Specification of the updates on groups.

        Raises:
            ValueError: If the learner was created without one.
        """
        if self._spec is None:
            raise ValueError("spec: this learner only imitates; create it with a `LearningSpec` to train it on groups")
        return self._spec

    @property
    def token_budget(self) -> int:
        """Maximum number of tokens of one forward pass; see `Learner.token_budget`."""
        return self.trainer.token_budget

    def update(self, batch: UpdateBatch) -> UpdateResult:
        """Make one update per minibatch and epoch on the groups of a step; see `Learner.update`."""
        outer = batch.outer_rate != 1
        before = (
            [parameter.detach().clone() for parameter in self.trainer.policy.trainable_parameters()] if outer else []
        )
        spec, trainer = self._adapt_spec(batch), self.trainer
        settings, critic = spec.settings, trainer.policy.critic
        trainer.optimizers.share = batch.budget_share
        trajectories = index_groups(batch.groups, observations=settings.train_on_observations)
        columns, stored = partial(batch_columns, spec, trainer), index_groups(batch.for_critic)
        warming = spec.critic is not None and trainer.optimizers.done < spec.critic.warmup_updates

        def credit() -> tuple[BatchCredit, list[Minibatch]]:
            batch_credit = assign_credit(spec.credit, trajectories, len(batch.groups), columns)
            critic_segments: list[list[CreditedSegment]] = []
            if stored and settings.offline_mixture is not None:
                discount = settings.offline_mixture.critic_discount
                critic_segments = compute_critic_targets(columns(stored), len(batch.for_critic), discount=discount)
            gaps = None
            if (
                critic_segments
                and settings.offline_mixture is not None
                and settings.offline_mixture.simulation_weight > 0
            ):
                gaps = dynamics_gaps(batch_credit.columns.trajectories, stored)
            count = settings.minibatches
            return batch_credit, split_minibatches(
                spec, trainer, batch_credit, batch.demonstrations, count, critic_segments, gaps
            )

        batch_credit, minibatches = credit()
        noises = _noises(spec, trainer.optimizers.done)
        for _ in range(spec.critic.epochs - 1 if spec.critic is not None else 0):
            for each in minibatches:
                loss = each.loss(spec, trainer, first=True, critic_only=True)
                trainer.step(each.segments, loss, **self._step_scale(each), critic_only=True, noise=next(noises))
                _follow(critic, spec.critic)
            batch_credit, minibatches = credit()
        metrics = dict(batch_credit.metrics)
        if settings.train_on_observations:
            metrics["update/observation_fraction"] = observed_fraction(trajectories)
        if spec.critic is not None and spec.critic.ensemble_size > 1 and any(map(_predicts_state_value, trainer.heads)):
            metrics["value/ensemble_std"] = (
                batch_credit.columns["value_deviations"].mean().item() if trajectories else 0.0
            )
        if trainer.process is not None:
            metrics |= trainer.process.learn(batch_credit.columns)
        reports: list[tuple[int, dict[str, float]]] = []
        entropies: dict[int, tuple[float, int]] = {}
        groups = batch_credit.by_group[:: settings.minibatches]
        for epoch in range(settings.epochs):
            for i, each in enumerate(minibatches):
                first = epoch == i == 0
                loss = each.loss(spec, trainer, first=first, critic_only=warming)
                term_metrics = {} if warming else self._with_batch(spec, batch_credit, each, loss)
                agreed = (
                    partial(check_mismatch, minibatches, loss, batch.version, settings)
                    if first
                    else skip_mismatch_check
                )
                noise = next(noises)
                measured = first and not warming and self._measures_noise(spec, batch, len(groups))
                part = sample_part(len(groups), seed=spec.seed, step=trainer.optimizers.done) if measured else []
                small = self._part_norm(each, loss, groups, part, noise)
                trainer.optimizers.rate_scale = rate_scale(batch_credit.by_group[i :: settings.minibatches], settings)
                options = {"critic_only": warming, "agreed": agreed, "noise": noise, **self._step_scale(each)}
                update = trainer.step(each.segments, loss, flat=each.flat, **options)
                _follow(critic, spec.critic)
                _add(entropies, loss.entropy_by_turn)
                if part and "update/grad_norm" in update and math.isfinite(small):
                    squares = ((small * len(groups) / len(part)) ** 2, update["update/grad_norm"] ** 2)
                    update |= trainer.gradient_noise.add(*squares, part=len(part), count=len(groups))
                reports.append((each.own_tokens, update | term_metrics))
        if entropies:
            trainer.entropies.add(entropies)
        metrics |= _average_reports(reports) | compute_logprob_mismatch(minibatches, batch.version)
        squared = metrics.pop("importance/weight_squared", 0.0)
        if squared > 0:  # (Σw)² / (n Σw²): 1 if all weights are equal
            metrics["importance/effective_sample_fraction"] = metrics["importance/weight_mean"] ** 2 / squared
        if outer:
            self._interpolate(before, batch.outer_rate)
        return UpdateResult(metrics, batch_credit.sizes)

    def evaluate_loss(self, batch: UpdateBatch) -> dict[str, float]:
        """Compute the loss of groups without an update; see `SupportsEvaluate`."""
        spec, trainer = self.spec, self.trainer
        trajectories, columns = index_groups(batch.groups), partial(batch_columns, spec, trainer)
        batch_credit = assign_credit(spec.credit, trajectories, len(batch.groups), columns)
        (minibatch,) = split_minibatches(spec, trainer, batch_credit, (), 1)
        loss = minibatch.loss(spec, trainer, first=True)
        term_metrics = self._with_batch(spec, batch_credit, minibatch, loss)
        loss_metrics = trainer.evaluate_loss(
            minibatch.segments, loss, temperature=spec.temperature, divisor=minibatch.divisor
        )
        minibatch.before = minibatch.before or list(loss.old)
        return loss_metrics | term_metrics | compute_logprob_mismatch([minibatch], batch.version)

    def imitate(self, segments: Sequence[Segment]) -> UpdateResult:
        """Make one supervised update on the action tokens of segments; see `Learner.imitate`."""
        return UpdateResult(self.trainer.step(segments, _imitation))

    def end_step(self) -> None:
        """End a training step: advance the schedule, and move the reference model if it is due."""
        self.trainer.optimizers.advance()
        if self._spec is None or self._spec.settings.reference_sync_steps is None:
            return
        if self.trainer.optimizers.done % self._spec.settings.reference_sync_steps == 0:
            self.trainer.move_reference(self._spec.settings.reference_mixup_alpha)

    @property
    def applied_steps(self) -> int:
        """See `protocol.CountsAppliedSteps`."""
        process = self.trainer.process
        return self.trainer.applied_steps + (process.trainer.applied_steps if process is not None else 0)

    def weights(self) -> Mapping[str, Tensor]:
        """Return the current weights by parameter name."""
        return dict(self.trainer.policy.model.named_parameters())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizer, metrics and other members, for a checkpoint."""
        return self.trainer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.trainer.load_state_dict(state)

    def _adapt_spec(self, batch: UpdateBatch) -> LearningSpec:
        if batch.minibatches is not None:
            changed = self.spec.settings.model_copy(update={"minibatches": batch.minibatches})
            return replace(self.spec, settings=changed)
        if not batch.recorded_advantages:
            return self.spec
        once = self.spec.settings.model_copy(update={"epochs": 1, "minibatches": 1})
        return replace(self.spec, settings=once, credit=CreditParts(advantage=_recorded))

    def _measures_noise(self, spec: LearningSpec, batch: UpdateBatch, groups: int) -> bool:
        """Return whether this step measures the gradient noise scale.

        It is measured at intervals, and only if the gradient has no part other than that of groups.
        """
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
        """Return the norm of the sum of the gradients of some groups, in units of the update's gradient.

        Args:
            batch: Minibatch of the update.
            loss: Loss of the update.
            groups: Segments of each group of the minibatch.
            part: Indices of the groups that are summed.
            noise: Embedding noise of the update.
        """
        owners = chain.from_iterable([number] * len(group) for number, group in enumerate(groups))
        places = [i for i, owner in enumerate(owners) if owner in part and i not in batch.flat]
        if not places:
            return 0.0
        segments, divisor = [batch.segments[i] for i in places], batch.divisor
        return self.trainer.gradient_norm(
            segments, loss.part(places), temperature=self.spec.temperature, divisor=divisor, noise=noise
        )

    def _step_scale(self, batch: Minibatch) -> dict[str, Any]:
        """Return temperature and divisor of a minibatch, as options of `ModelTrainer.step`."""
        return {"temperature": self.spec.temperature, "divisor": batch.divisor}

    def _interpolate(self, before: Sequence[Tensor], rate: float) -> None:
        """Move the weights back to a fraction of the step's change; see `UpdateBatch.outer_rate`."""
        with torch.no_grad():
            for parameter, was in zip(self.trainer.policy.trainable_parameters(), before, strict=True):
                parameter.copy_(reptile_step(was, parameter, rate=rate))
        self.trainer.optimizers.refresh()

    def _with_batch(
        self, spec: LearningSpec, batch_credit: BatchCredit, batch: Minibatch, loss: UpdateLoss
    ) -> dict[str, float]:
        """Compute the loss terms that need the whole update, and add them to the loss; return their metrics."""
        loss.usual_entropies = self.trainer.entropies.mean_entropies()
        metrics = {}
        if get_sequence_level(spec.objective) is not None:
            metrics = _convert_sequence_loss(spec, self.trainer, batch_credit, batch, loss)
        if spans_passes(spec, batch):
            show = partial(self.trainer.show, batch.segments, temperature=spec.temperature)
            loss.compute_whole(batch.segments, show)
        return metrics


def batch_columns(
    spec: LearningSpec, trainer: ModelTrainer | None, trajectories: Sequence[IndexedTrajectory]
) -> Columns:
    """Create the columns of trajectories for the current step.

    Args:
        spec: Specification of the updates.
        trainer: Trainer that computes log-probs and values; None: no model is available.
        trajectories: Trajectories of the batch.
    """
    step, sources = trainer.optimizers.done if trainer is not None else 0, spec.column_sources
    return Columns(
        trajectories,
        learner=trainer,
        scorer=trainer.process.trainer if trainer is not None and trainer.process is not None else None,
        temperature=spec.temperature,
        chat=sources.chat,
        roles=sources.roles,
        teacher_reads=sources.teacher_reads,
        generator=torch.Generator().manual_seed(derive_seed(spec.seed, "columns", step) % 2**63),
        custom=collect_columns(sources.added),
        reduce_ensemble=_ensemble_reduction(spec.critic),
    )


def rate_scale(groups: Sequence[Sequence[CreditedSegment]], settings: ReinforcementSettings) -> float:
    """Return the factor of the learning rate for an update.

    The factor is the number of groups with a signal, divided by `full_rate_groups`.

    At most 1; 1 if `reinforcement.full_rate_groups` is not set.

    Args:
        groups: Segments of each group of the update.
        settings: Settings of the stage.
    """
    if settings.full_rate_groups is None:
        return 1.0
    with_signal = sum(any(any(each.segment.advantages or ()) for each in group) for group in groups)
    return min(1.0, with_signal / settings.full_rate_groups)


def _imitation(outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
    return supervised(outputs.logprobs)


def _ensemble_reduction(settings: CriticSettings | None) -> Callable[[Tensor], Tensor] | None:
    return (
        None
        if settings is None
        else partial(pessimistic_value, by=settings.pessimism, strength=settings.pessimism_coef)
    )


def _noises(spec: LearningSpec, step: int) -> Iterator[EmbeddingNoise | None]:
    """Yield, per update of a step, the noise of its second forward pass; None without one."""
    smooth = spec.settings.consistency_regularization
    for number in counting():
        seed = derive_seed(spec.seed, "smoothness", step, number)
        yield None if smooth is None else EmbeddingNoise(smooth.noise, seed)


def _predicts_state_value(head: str) -> bool:
    """Return whether a head predicts the value of a state."""
    return get_head_kind(head) in STATE_VALUES


def _follow(critic: Critic | None, settings: CriticSettings | None) -> None:
    if critic is not None and settings is not None:
        critic.update_targets(settings.target_update_rate)


def _add(entropies: dict[int, tuple[float, int]], added: Mapping[int, tuple[float, int]]) -> None:
    for turn, (total, count) in added.items():
        before = entropies.get(turn, (0.0, 0))
        entropies[turn] = (before[0] + total, before[1] + count)


def _recorded(advantage: PerTrajectory) -> PerTrajectory:
    return advantage


def _average_reports(reports: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Average the metrics of a step's updates, over policy tokens or over updates.

    Args:
        reports: (number of policy tokens, metrics) of each update.
    """
    averages: dict[str, float] = {}
    for name in dict.fromkeys(chain.from_iterable(report for _, report in reports)):
        numbers = [(tokens, report[name]) for tokens, report in reports if name in report]
        weights = [0 if name.startswith(_PER_UPDATE) else tokens for tokens, _ in numbers]
        values = [value for _, value in numbers]
        averages[name] = fmean(values, weights) if any(weights) else fmean(values)
    return averages


def _convert_sequence_loss(
    spec: LearningSpec, trainer: ModelTrainer, batch_credit: BatchCredit, batch: Minibatch, loss: UpdateLoss
) -> dict[str, float]:
    """Convert an objective on sequence log-probs to a loss per token at the current weights.

    The loss is changed in place. Returns metrics.
    """
    learner_logprobs = trainer.logprobs(batch.segments, temperature=spec.temperature)
    count = len(batch.credited)
    logprobs = {"learner": learner_logprobs[:count], "old": batch.old[:count]}
    if "reference_logprobs" in batch.columns:
        logprobs["reference"] = batch.columns["reference_logprobs"][:count]
    level = get_sequence_level(spec.objective)
    per_token, value, metrics = compute_coefficients(
        spec.objective, build_sequence_logprobs(batch_credit.columns, batch.column_index, level), logprobs
    )
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
    """Distribute a loss on sums over their tokens: equal parts in value, `coefficients` in gradient."""
    return TokenLoss(shares + coefficients * (learner_logprobs - learner_logprobs.detach()), {})


def compute_logprob_mismatch(batches: Sequence[Minibatch], version: int | None) -> dict[str, float]:
    """Compute the mismatch of sampler and learner log-probs on the tokens of a step.

    The learner's log-probs are those before any update of the step. Tokens of older weights, or sampled in another
    context than the trained one, measure staleness (`policy/staleness_kl`), not a mismatch.

    Args:
        batches: Minibatches of the step.
        version: Policy version of the current weights; None: all tokens were sampled with them.

    Returns:
        Metrics `sampler/mismatch_*` and `policy/staleness_kl`; empty without a sampled token.
    """
    learner_parts, sampler_parts, current_parts = [], [], []
    for batch in batches:
        of_others = chain(batch.of_others, repeat(False))
        for segment, logprobs, other in zip(batch.segments, batch.before, of_others, strict=False):
            places = get_action_positions(segment)
            sampled = torch.tensor([segment.tokens.logprobs[place] for place in places], dtype=torch.float64)
            spliced = torch.tensor([segment.tokens.authors[place] is Author.INSERTED for place in places])
            is_sampled = ~sampled.isnan() & ~spliced.bool()
            versions = torch.tensor([segment.tokens.versions[place] for place in places], dtype=torch.long)
            is_current = torch.ones_like(versions, dtype=torch.bool) if version is None else versions == version
            learner_parts.append(logprobs.cpu().double()[is_sampled])
            sampler_parts.append(sampled[is_sampled])
            current_parts.append((is_current & (not other))[is_sampled])
    if not sum(map(len, learner_parts)):
        return {}
    learner_side, sampler_side, is_current = (
        torch.cat(learner_parts),
        torch.cat(sampler_parts),
        torch.cat(current_parts),
    )
    metrics = mismatch_metrics(learner_side[is_current], sampler_side[is_current]) if is_current.any() else {}
    if not is_current.all():
        metrics["policy/staleness_kl"] = mismatch_metrics(learner_side[~is_current], sampler_side[~is_current])[
            "sampler/mismatch_kl"
        ]
    return metrics


def check_mismatch(
    batches: Sequence[Minibatch], loss: UpdateLoss, version: int | None, settings: ReinforcementSettings
) -> None:
    """Check the mismatch of sampler and learner before the first gradient of a step is applied.

    The learner's log-probs are those of the first forward pass of the step.

    Args:
        batches: Minibatches of the step.
        loss: Loss of the first update, which has the learner's log-probs.
        version: Policy version of the current weights; None: all tokens were sampled with them.
        settings: Settings of the stage, with `max_mismatch_kl`.

    Raises:
        MismatchError: If the mismatch exceeds `reinforcement.max_mismatch_kl`.
    """
    batches[0].before = list(loss.old)
    mismatch_kl = compute_logprob_mismatch(batches, version).get("sampler/mismatch_kl", 0.0)
    if mismatch_kl > settings.max_mismatch_kl:
        raise MismatchError(
            f"sampler and learner disagree by {mismatch_kl:.3g} nats per token on the tokens that were just sampled "
            f"(sampler/mismatch_kl), more than reinforcement.max_mismatch_kl ({settings.max_mismatch_kl:g}): they "
            "differ in weights, precision, chat template or temperature, and training on such ratios fits noise; "
            "compare the two with `whetstone doctor RECIPE`"
        )


def skip_mismatch_check() -> None:
    """Do nothing, for updates after the first of a step, whose weights did not sample the tokens."""
