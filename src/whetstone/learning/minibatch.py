"""One update's part of the groups of a step, with old log-probs, weights and columns for the loss terms.

Note:
    The weight of a trajectory is counted over all its segments, and the divisor over the whole update.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from whetstone.algorithms import LossTerm, TokenLoss, is_flat_without_advantage, token_weights
from whetstone.algorithms.objectives import hybrid_weight, simulation_penalty
from whetstone.errors import CreditError
from whetstone.learning.credit_assignment import BatchCredit, CreditedSegment
from whetstone.learning.losses import (
    CRITIC_COLUMNS,
    FORWARD_COLUMNS,
    PERTURBED_COLUMNS,
    POLICY,
    UpdateLoss,
)
from whetstone.learning.model_trainer import ModelTrainer, action_tokens, get_action_positions
from whetstone.learning.sequence_logprobs import get_sequence_level
from whetstone.learning.spec import LearningSpec
from whetstone.recipe import AggregationSettings, StoredMixtureSettings
from whetstone.trajectory import Author, OffPolicy, Segment, Trajectory

_PASS_COLUMNS = FORWARD_COLUMNS | CRITIC_COLUMNS | PERTURBED_COLUMNS


def split_minibatches(
    spec: LearningSpec,
    trainer: ModelTrainer,
    batch_credit: BatchCredit,
    demonstrations: Sequence[Segment],
    count: int,
    critic_segments: Sequence[Sequence[CreditedSegment]] = (),
    gaps: Tensor | None = None,
) -> list[Minibatch]:
    """Divide the groups of a step into minibatches, with the columns that the loss terms read.

    Group i is in minibatch i mod `count`. Log-probs of reference, teacher and old policy are computed here, except
    those that the first forward pass of the step yields.

    Args:
        spec: Specification of the updates.
        trainer: Trainer that computes log-probs.
        batch_credit: Credit of the step.
        demonstrations: Segments that an expert wrote.
        count: Number of minibatches.
        critic_segments: Segments that only critics are trained on, group by group.
        gaps: [M] dynamics gap of each of the policy's turns to those of `critic_segments`; None: no penalty.
    """
    temperature = spec.temperature
    requested = {name for term in spec.terms for name in term.columns}
    of_tokens = [term for term in spec.terms if get_sequence_level(term.function) is None]
    per_token = {name for term in of_tokens for name in term.columns} - _PASS_COLUMNS
    shares = [[each for group in batch_credit.by_group[i::count] for each in group] for i in range(count)]
    batches = []
    for i, share in enumerate(shares):
        lengths = _lengths(share)
        divisor = int(sum(lengths.values()))
        weights = _weights(spec.aggregation, lengths, divisor)
        lessons = [each for group in critic_segments[i::count] for each in group]
        batch = Minibatch.of(share, demonstrations[i::count], weights, lessons)
        if _flat_without_credit(spec):
            by_trajectory = reads_sequences(spec)
            credit = {each.segment.trajectory_id for each in share if any(each.segment.advantages or ())}
            batch.flat = {
                k
                for k, each in enumerate(share)
                if not any(each.segment.advantages or ())
                and not (by_trajectory and each.segment.trajectory_id in credit)
            }
        batch.divisor = divisor or sum(map(action_tokens, batch.segments))
        batches.append(batch)
    for i, batch in enumerate(batches):
        if i > 0 or get_sequence_level(spec.objective) is not None:
            # the first update's old policy is the one being differentiated: its forward pass yields the log-probs
            batch.old = batch.before = trainer.logprobs(batch.segments, temperature=temperature)
        if requested & {"reference_logprobs", "reference_sums"}:
            reference = trainer.logprobs(batch.segments, temperature=temperature, of="reference")
            batch.columns["reference_logprobs"] = reference
        if "teacher_logprobs" in requested and spec.column_sources.teacher_reads is None:
            teacher = trainer.logprobs(batch.segments, temperature=temperature, of="teacher")
            batch.columns["teacher_logprobs"] = teacher
        batch.add_critic_columns()
        if gaps is not None:
            gaps_by_segment = batch_credit.columns.split_by_segment(batch_credit.columns.expand(gaps, "turn", "token"))
            batch.add_value_slopes([gaps_by_segment[i][k] for i, k in batch.column_index])
        of = [batch_credit.columns.trajectories[i].trajectory for i, _ in batch.column_index]
        batch.of_others = [_is_off_policy(trajectory) for trajectory in of]
        batch.use_sampler_logprobs = _sampler_masks(batch_credit, batch)
        if batch.use_sampler_logprobs is not None and batch.before:
            drawn = batch.column(batch_credit, "sampler_logprobs")
            batch.old = [
                torch.where(k.to(o.device), d.to(o), o)
                for k, d, o in zip(batch.use_sampler_logprobs, drawn, batch.old, strict=True)
            ]
        for name in per_token - batch.columns.keys():
            batch.columns[name] = batch.column(batch_credit, name)
    return batches


def _is_off_policy(trajectory: Trajectory) -> bool:
    return trajectory.off_policy is not OffPolicy.RECOMPUTE or any(
        turn.training_context is not None for turn in trajectory.turns
    )


def _sampler_masks(batch_credit: BatchCredit, batch: Minibatch) -> list[Tensor] | None:
    """Return [A] per segment whether ratios use the log-probs stored in sampling; None: nowhere.

    Raises:
        CreditError: If stored log-probs are required and missing.
    """
    masks = []
    for (i, _), segment in zip(batch.column_index, batch.segments, strict=False):
        trajectory = batch_credit.columns.trajectories[i].trajectory
        places = get_action_positions(segment)
        spliced = [segment.tokens.authors[place] is Author.INSERTED for place in places]
        drawn = [segment.tokens.authors[place] is not Author.ENVIRONMENT for place in places]
        uses_sampler = drawn if trajectory.off_policy.uses_stored_logprobs else spliced
        if any(k and math.isnan(segment.tokens.logprobs[place]) for k, place in zip(uses_sampler, places, strict=True)):
            raise CreditError(
                f"{trajectory.id}: off_policy {trajectory.off_policy} uses log-probs stored in sampling, and it has "
                "none; use off_policy: recompute for it"
            )
        masks.append(torch.tensor(uses_sampler, dtype=torch.bool))
    if not any(bool(each.any()) for each in masks):
        return None
    rest = batch.segments[len(masks) :]
    return [*masks, *(torch.zeros(action_tokens(segment), dtype=torch.bool) for segment in rest)]


def _flat_without_credit(spec: LearningSpec) -> bool:
    """Return whether a segment whose advantages are all 0 has no gradient under these loss terms."""
    of_groups = [term for term in spec.terms if term.over != "expert"]
    return spec.critic is None and all(is_flat_without_advantage(term.function) for term in of_groups)


def _lengths(share: Sequence[CreditedSegment]) -> dict[str, int]:
    """Return the number of action tokens of each trajectory."""
    lengths: dict[str, int] = {}
    for each in share:
        name = each.segment.trajectory_id
        lengths[name] = lengths.get(name, 0) + action_tokens(each.segment)
    return lengths


def _weights(settings: AggregationSettings, lengths: Mapping[str, int], divisor: int) -> dict[str, float] | None:
    """Return the factor of each trajectory's tokens before the division by the divisor; None: 1."""
    if settings.mode == "token_mean":
        return None
    weights = token_weights(torch.tensor(list(lengths.values())), settings.mode, constant=settings.tokens)
    return dict(zip(lengths, (weights * divisor).tolist(), strict=True))


@dataclass(slots=True)
class Minibatch:
    """Segments of one update, with their columns; lists are per segment.

    Created by `split_minibatches`.
    """

    segments: list[Segment]
    """Segments of `credited`, of `critic_segments`, then demonstrations."""
    credited: list[CreditedSegment]
    """Segments of the policy's own episodes, with credit."""
    critic_segments: list[CreditedSegment]
    """Segments that only critics are trained on."""
    old: list[Tensor]
    """[A] old log-probs, the denominators of ratios; empty tensors if the first forward pass of the step computes
    them."""
    weights: list[float] | None
    """Weight of each segment by `aggregation`; None: 1."""
    columns: dict[str, list[Tensor]] = field(default_factory=dict)
    """[A] or [A, heads] columns of the loss terms."""
    use_sampler_logprobs: list[Tensor] | None = None
    """[A] whether ratios use the sampler's log-probs instead of the old policy's; None: nowhere."""
    divisor: int = 1
    """Number of tokens by which the loss is divided."""
    flat: Collection[int] = ()
    """Indices of segments whose loss has no gradient, which are computed for metrics only."""
    of_others: Sequence[bool] = ()
    """Whether each segment of `credited` was sampled earlier, or in another context."""
    before: list[Tensor] = field(default_factory=list)
    """[A] log-probs before any update of the step, also if ratios use others; empty until they are known."""

    @classmethod
    def of(
        cls,
        share: Sequence[CreditedSegment],
        demonstrations: Sequence[Segment],
        weights: Mapping[str, float] | None,
        critic_segments: Sequence[CreditedSegment] = (),
    ) -> Minibatch:
        """Create the minibatch of the policy's own segments, segments for critics, and demonstrations.

        Args:
            share: The policy's own segments, with credit.
            demonstrations: Segments that an expert wrote.
            weights: Loss weight by trajectory id; None: 1.
            critic_segments: Segments that only critics are trained on; their weight is 0.
        """
        segments = [*(each.segment for each in (*share, *critic_segments)), *demonstrations]
        of_each = None
        if weights is not None or critic_segments:
            of_each = [(weights or {}).get(segment.trajectory_id, 1.0) for segment in segments]
            of_each[len(share) : len(share) + len(critic_segments)] = [0.0] * len(critic_segments)
        return cls(segments, list(share), list(critic_segments), [torch.empty(0)] * len(segments), of_each)

    @property
    def column_index(self) -> list[tuple[int, int]]:
        """(index of the trajectory in the columns, index of the segment in it) of each of the policy's own segments."""
        return [each.column_index for each in self.credited]

    def loss(self, spec: LearningSpec, trainer: ModelTrainer, *, first: bool, critic_only: bool = False) -> UpdateLoss:
        """Return the loss of this update, with the weights of its terms at the current step.

        Args:
            spec: Specification of the updates.
            trainer: Trainer, whose schedule determines the step.
            first: Whether this is the first update of a step, whose forward pass yields the old log-probs.
            critic_only: Whether only critics are trained; the objective is then left out. An objective on sums is also
                left out, and added by `learner.py`.
        """
        step, position = trainer.optimizers.done, int(trainer.optimizers.place)
        means = {"expert": self.mean_factor(self.num_imitated), "critic": self.mean_factor(self.num_predictions)}
        terms = [term.resolve(step, position, scale=means.get(term.over, 1.0)) for term in spec.terms]
        if critic_only:
            terms[0] = LossTerm(POLICY, _nothing, 0.0)
        elif get_sequence_level(spec.objective) is not None:
            terms[0] = replace(terms[0], function=_nothing, correction=None)
        return UpdateLoss(
            terms=[term for term in terms if term.name == POLICY or (term.weight and self._can_compute(term))],
            old=self.old,
            first=first and not self.before,
            columns=self.columns,
            use_sampler_logprobs=self.use_sampler_logprobs,
            weights=self.weights,
            critic_weights=self._critic_weights(spec.settings.offline_mixture),
        )

    def _can_compute(self, term: LossTerm) -> bool:
        """Return whether the update has all critic columns that a loss term reads."""
        read = CRITIC_COLUMNS.intersection(term.columns) - {"critic_values"}
        return read <= self.columns.keys()

    def column(self, batch_credit: BatchCredit, name: str) -> list[Tensor]:
        """Return a column of the batch at the action tokens of each segment, [A] per segment.

        Demonstrations and segments for critics have 0.
        """
        at_actions = batch_credit.columns.split_by_segment(batch_credit.columns.per_token(name))
        own_column = [at_actions[i][k] for i, k in self.column_index]
        rest = self.segments[len(self.credited) :]
        return [*own_column, *(torch.zeros(action_tokens(segment)) for segment in rest)]

    def add_critic_columns(self) -> None:
        """Add the columns with critic targets and values before the update, if there are critics."""
        learned = [*self.credited, *self.critic_segments]
        targets = [each.target for each in learned if each.target is not None]
        values = [each.value for each in learned if each.value is not None]
        for name, column, missing in (("critic_targets", targets, math.nan), ("old_critic_values", values, 0.0)):
            if column:
                rest = self.segments[len(column) :]
                padding = (torch.full((action_tokens(s), column[0].shape[1]), missing) for s in rest)
                self.columns[name] = [*column, *padding]

    @property
    def own_tokens(self) -> int:
        """Number of action tokens of the policy's own segments."""
        return sum(map(action_tokens, self.segments[: len(self.credited)]))

    @property
    def num_predictions(self) -> int:
        """Number of critic predictions with a target, in the policy's own segments."""
        return _predictions(self.credited)

    def add_value_slopes(self, gaps: Sequence[Tensor]) -> None:
        """Add the column with the derivatives of `simulation_penalty` by each value before the step.

        The derivatives are scaled as for a mean over predictions.

        Args:
            gaps: [A] dynamics gap at the action tokens of each of the policy's own segments.
        """
        self.columns["value_slopes"] = [
            max(1, self.num_predictions) * slope for slope in _simulation_slopes(self, gaps)
        ]

    def _critic_weights(self, settings: StoredMixtureSettings | None) -> list[float] | None:
        """Return the weight of the critics' loss per segment, 1 for the policy's own; None: 1 everywhere."""
        if not self.critic_segments or settings is None:
            return None
        weight = hybrid_weight(
            self.num_predictions, _predictions(self.critic_segments), offline_weight=settings.critic_weight
        )
        rest = len(self.segments) - len(self.credited) - len(self.critic_segments)
        return [*[1.0] * len(self.credited), *[weight] * len(self.critic_segments), *[1.0] * rest]

    @property
    def num_imitated(self) -> int:
        """Number of tokens that an expert wrote."""
        return sum(author is Author.EXPERT for segment in self.segments for author in segment.tokens.authors)

    def mean_factor(self, count: int) -> float:
        """Return the factor that converts a sum divided by `divisor` to a mean over `count` tokens."""
        return self.divisor / max(1, count)


def _simulation_slopes(batch: Minibatch, gaps: Sequence[Tensor]) -> list[Tensor]:
    """Return the derivatives of `simulation_penalty` by each critic value, at the values before the step."""
    learned = [*batch.credited, *batch.critic_segments]
    values = [each.value for each in learned if each.value is not None]
    has_target = [~each.target.isnan() for each in learned if each.target is not None]
    own, heads = len(batch.credited), values[0].shape[1] if values else 0
    slopes_by_segment = [torch.zeros(action_tokens(segment), heads) for segment in batch.segments]
    for head in range(heads):
        simulated = torch.cat([v[a[:, head], head] for v, a in zip(values[:own], has_target[:own], strict=True)])
        real = torch.cat([v[a[:, head], head] for v, a in zip(values[own:], has_target[own:], strict=True)])
        off = torch.cat([g[a[:, head]] for g, a in zip(gaps, has_target[:own], strict=True)])
        if not len(simulated) or not len(real):
            continue
        leaves = [simulated.double().requires_grad_(), real.double().requires_grad_()]
        with torch.enable_grad():
            slopes = torch.autograd.grad(simulation_penalty(off, *leaves), leaves)
        left = torch.split(torch.cat(slopes).float(), [int(a[:, head].sum()) for a in has_target])
        for place, (each, slope) in enumerate(zip(has_target, left, strict=True)):
            slopes_by_segment[place][each[:, head], head] = slope
    return slopes_by_segment


def _predictions(credited: Sequence[CreditedSegment]) -> int:
    return sum(int((~each.target.isnan()).sum()) for each in credited if each.target is not None)


def _nothing(learner_logprobs: Tensor) -> TokenLoss:
    return TokenLoss(0.0 * learner_logprobs, {})


def spans_passes(spec: LearningSpec, batch: Minibatch) -> bool:
    """Return whether a loss term needs tokens of several forward passes at once.

    This is the case if a term reads `sequence`, and a trajectory has several segments.
    """
    return reads_sequences(spec) and len({s.trajectory_id for s in batch.segments}) < len(batch.segments)


def reads_sequences(spec: LearningSpec) -> bool:
    """Return whether a loss term reads `sequence`, and so compares tokens of a whole trajectory."""
    return any("sequence" in term.columns for term in spec.terms)
