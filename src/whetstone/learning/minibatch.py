"""One update's share of the groups of a step, with log-probs, weights and columns for the loss terms.

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
from whetstone.learning.credit import BatchCredit, CreditedSegment
from whetstone.learning.losses import (
    CRITIC_COLUMNS,
    FORWARD_COLUMNS,
    PERTURBED_COLUMNS,
    POLICY,
    UpdateLoss,
)
from whetstone.learning.model_trainer import ModelTrainer, action_places, action_tokens
from whetstone.learning.sequence_logprobs import sums_level
from whetstone.learning.spec import LearningSpec
from whetstone.recipe import AggregationSettings, StoredMixtureSettings
from whetstone.trajectory import Author, OffPolicy, Segment, Trajectory

_OF_PASSES = FORWARD_COLUMNS | CRITIC_COLUMNS | PERTURBED_COLUMNS


def minibatches_of(
    spec: LearningSpec,
    trainer: ModelTrainer,
    given: BatchCredit,
    shown: Sequence[Segment],
    count: int,
    taught: Sequence[Sequence[CreditedSegment]] = (),
    gaps: Tensor | None = None,
) -> list[Minibatch]:
    """Return the minibatches of a step: the groups dealt out in turn, each with the columns that its terms read.

    Args:
        shown: Demonstrations.
        count: Number of minibatches.
        taught: Segments that only critics are trained on, group by group.
        gaps: [M] dynamics gap of the policy's own turns to those of `taught`; None: 0.
    """
    temperature = spec.temperature
    asked = {name for term in spec.terms for name in term.columns}
    of_tokens = [term for term in spec.terms if sums_level(term.function) is None]
    per_token = {name for term in of_tokens for name in term.columns} - _OF_PASSES
    shares = [[each for group in given.by_group[i::count] for each in group] for i in range(count)]
    batches = []
    for i, share in enumerate(shares):
        lengths = _lengths(share)
        divisor = int(sum(lengths.values()))
        weights = _weights(spec.aggregation, lengths, divisor)
        lessons = [each for group in taught[i::count] for each in group]
        batch = Minibatch.of(share, shown[i::count], weights, lessons)
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
        if i > 0 or sums_level(spec.objective) is not None:
            # the first update's old policy is the one being differentiated: the pass itself finds its log-probs
            batch.old = batch.before = trainer.logprobs(batch.segments, temperature=temperature)
        if asked & {"reference_logprobs", "reference_sums"}:
            reference = trainer.logprobs(batch.segments, temperature=temperature, of="reference")
            batch.columns["reference_logprobs"] = reference
        if "teacher_logprobs" in asked and spec.column_sources.teacher_reads is None:
            teacher = trainer.logprobs(batch.segments, temperature=temperature, of="teacher")
            batch.columns["teacher_logprobs"] = teacher
        batch.add_critic_columns()
        if gaps is not None:
            apart = given.columns.at_actions(given.columns.spread(gaps, "turn", "token"))
            batch.add_value_slopes([apart[i][k] for i, k in batch.placed])
        of = [given.columns.held[i].trajectory for i, _ in batch.placed]
        batch.of_others = [_drawn_otherwise(trajectory) for trajectory in of]
        batch.kept = _kept(given, batch)
        if batch.kept is not None and batch.before:
            drawn = batch.column(given, "sampler_logprobs")
            batch.old = [
                torch.where(k.to(o.device), d.to(o), o) for k, d, o in zip(batch.kept, drawn, batch.old, strict=True)
            ]
        for name in per_token - batch.columns.keys():
            batch.columns[name] = batch.column(given, name)
    return batches


def _drawn_otherwise(trajectory: Trajectory) -> bool:
    return trajectory.off_policy is not OffPolicy.RECOMPUTE or any(
        turn.training_context is not None for turn in trajectory.turns
    )


def _kept(given: BatchCredit, batch: Minibatch) -> list[Tensor] | None:
    """[A] of each segment, where ratios compare with the log-probs kept when tokens were drawn; None: nowhere.

    Raises:
        CreditError: They are to, and there are none.
    """
    found = []
    for (i, _), segment in zip(batch.placed, batch.segments, strict=False):
        trajectory = given.columns.held[i].trajectory
        places = action_places(segment)
        spliced = [segment.tokens.authors[place] is Author.INSERTED for place in places]
        drawn = [segment.tokens.authors[place] is not Author.ENVIRONMENT for place in places]
        kept = drawn if trajectory.off_policy.kept else spliced
        if any(k and math.isnan(segment.tokens.logprobs[place]) for k, place in zip(kept, places, strict=True)):
            raise CreditError(
                f"{trajectory.id}: off_policy {trajectory.off_policy} compares with log-probs from when tokens were "
                "drawn, and it has none; use off_policy: recompute for it"
            )
        found.append(torch.tensor(kept, dtype=torch.bool))
    if not any(bool(each.any()) for each in found):
        return None
    rest = batch.segments[len(found) :]
    return [*found, *(torch.zeros(action_tokens(segment), dtype=torch.bool) for segment in rest)]


def _flat_without_credit(spec: LearningSpec) -> bool:
    """Return whether the loss of a segment without credit has no gradient."""
    of_groups = [term for term in spec.terms if term.over != "expert"]
    return spec.critic is None and all(is_flat_without_advantage(term.function) for term in of_groups)


def _lengths(share: Sequence[CreditedSegment]) -> dict[str, int]:
    """Action tokens of each trajectory."""
    found: dict[str, int] = {}
    for each in share:
        name = each.segment.trajectory_id
        found[name] = found.get(name, 0) + action_tokens(each.segment)
    return found


def _weights(settings: AggregationSettings, lengths: Mapping[str, int], divisor: int) -> dict[str, float] | None:
    """What a token of each trajectory is multiplied by, beside being divided by the divisor; None: by 1."""
    if settings.mode == "token_mean":
        return None
    said = token_weights(torch.tensor(list(lengths.values())), settings.mode, constant=settings.tokens)
    return dict(zip(lengths, (said * divisor).tolist(), strict=True))


@dataclass(slots=True)
class Minibatch:
    """Segments of one update; lists are per segment."""

    segments: list[Segment]
    """Those of `credited`, of `taught`, then demonstrations."""
    credited: list[CreditedSegment]
    """The policy's own."""
    taught: list[CreditedSegment]
    """Those that only critics are trained on."""
    old: list[Tensor]
    """[A] log-probs that ratios compare with; empty tensors if the first forward pass of the step computes them."""
    weights: list[float] | None
    """By `aggregation`; None: 1."""
    columns: dict[str, list[Tensor]] = field(default_factory=dict)
    """[A] or [A, heads] columns of the loss terms."""
    kept: list[Tensor] | None = None
    """[A] whether ratios compare with the log-probs that the sampler had; None: nowhere."""
    divisor: int = 1
    """Tokens that the loss is divided by."""
    flat: Collection[int] = ()
    """Segments whose loss has no gradient; they are computed for metrics only."""
    of_others: Sequence[bool] = ()
    """Of `credited`: whether the segment was sampled earlier, or in another context."""
    before: list[Tensor] = field(default_factory=list)
    """Log-probs before any update of the step, whatever ratios compare with; empty until they are known."""

    @classmethod
    def of(
        cls,
        share: Sequence[CreditedSegment],
        shown: Sequence[Segment],
        weights: Mapping[str, float] | None,
        taught: Sequence[CreditedSegment] = (),
    ) -> Minibatch:
        """Return the minibatch of the policy's own segments, those for critics, and demonstrations."""
        segments = [*(each.segment for each in (*share, *taught)), *shown]
        of_each = None
        if weights is not None or taught:
            of_each = [(weights or {}).get(segment.trajectory_id, 1.0) for segment in segments]
            of_each[len(share) : len(share) + len(taught)] = [0.0] * len(taught)
        return cls(segments, list(share), list(taught), [torch.empty(0)] * len(segments), of_each)

    @property
    def placed(self) -> list[tuple[int, int]]:
        """Return of the policy's own: (number of the trajectory, number of the segment in it)."""
        return [each.placed for each in self.credited]

    def loss(self, spec: LearningSpec, trainer: ModelTrainer, *, first: bool, critic_only: bool = False) -> UpdateLoss:
        """Return the loss with the terms of a stage at its current step.

        The objective is left out if only critics are trained (`critic_only`), and until `learner.py` adds it if it is
        one on sums.
        """
        step, position = trainer.optimizers.done, int(trainer.optimizers.place)
        means = {"expert": self.per(self.imitated), "critic": self.per(self.predictions)}
        terms = [term.resolve(step, position, scale=means.get(term.over, 1.0)) for term in spec.terms]
        if critic_only:
            terms[0] = LossTerm(POLICY, _nothing, 0.0)
        elif sums_level(spec.objective) is not None:
            terms[0] = replace(terms[0], function=_nothing, correction=None)
        return UpdateLoss(
            terms=[term for term in terms if term.name == POLICY or (term.weight and self._can_compute(term))],
            old=self.old,
            first=first and not self.before,
            columns=self.columns,
            kept=self.kept,
            weights=self.weights,
            critic_weights=self._critic_weights(spec.settings.offline_mixture),
        )

    def _can_compute(self, term: LossTerm) -> bool:
        """Return whether the update has targets, and slopes, of critics if the term reads them."""
        read = CRITIC_COLUMNS.intersection(term.columns) - {"critic_values"}
        return read <= self.columns.keys()

    def column(self, given: BatchCredit, name: str) -> list[Tensor]:
        """Return a column of the batch at the action tokens of each segment; 0 at demonstrations."""
        at_actions = given.columns.at_actions(given.columns.per_token(name))
        found = [at_actions[i][k] for i, k in self.placed]
        rest = self.segments[len(self.credited) :]
        return [*found, *(torch.zeros(action_tokens(segment)) for segment in rest)]

    def add_critic_columns(self) -> None:
        """Add the targets of critics and their values before the update, if there are critics."""
        learned = [*self.credited, *self.taught]
        targets = [each.target for each in learned if each.target is not None]
        values = [each.value for each in learned if each.value is not None]
        for name, found, missing in (("critic_targets", targets, math.nan), ("old_critic_values", values, 0.0)):
            if found:
                rest = self.segments[len(found) :]
                padding = (torch.full((action_tokens(s), found[0].shape[1]), missing) for s in rest)
                self.columns[name] = [*found, *padding]

    @property
    def own_tokens(self) -> int:
        """Return the number of action tokens of the policy's own episodes."""
        return sum(map(action_tokens, self.segments[: len(self.credited)]))

    @property
    def predictions(self) -> int:
        """How many values critics are to foretell of the policy's own episodes."""
        return _predictions(self.credited)

    def add_value_slopes(self, gaps: Sequence[Tensor]) -> None:
        """Add the derivatives of `simulation_penalty` by each value, before the step, as of a mean over predictions."""
        self.columns["value_slopes"] = [max(1, self.predictions) * slope for slope in _simulation_slopes(self, gaps)]

    def _critic_weights(self, settings: StoredMixtureSettings | None) -> list[float] | None:
        """Return the weight of the critics' error per segment, 1 on the policy's own; None: 1 everywhere."""
        if not self.taught or settings is None:
            return None
        weight = hybrid_weight(self.predictions, _predictions(self.taught), offline_weight=settings.critic_weight)
        rest = len(self.segments) - len(self.credited) - len(self.taught)
        return [*[1.0] * len(self.credited), *[weight] * len(self.taught), *[1.0] * rest]

    @property
    def imitated(self) -> int:
        """How many tokens an expert wrote."""
        return sum(author is Author.EXPERT for segment in self.segments for author in segment.tokens.authors)

    def per(self, count: int) -> float:
        """What turns a sum over the divisor into a mean over `count`."""
        return self.divisor / max(1, count)


def _simulation_slopes(batch: Minibatch, gaps: Sequence[Tensor]) -> list[Tensor]:
    """By how much `simulation_penalty` grows with each value, at the values before the step."""
    learned = [*batch.credited, *batch.taught]
    values = [each.value for each in learned if each.value is not None]
    asked = [~each.target.isnan() for each in learned if each.target is not None]
    own, heads = len(batch.credited), values[0].shape[1] if values else 0
    found = [torch.zeros(action_tokens(segment), heads) for segment in batch.segments]
    for head in range(heads):
        simulated = torch.cat([v[a[:, head], head] for v, a in zip(values[:own], asked[:own], strict=True)])
        real = torch.cat([v[a[:, head], head] for v, a in zip(values[own:], asked[own:], strict=True)])
        off = torch.cat([g[a[:, head]] for g, a in zip(gaps, asked[:own], strict=True)])
        if not len(simulated) or not len(real):
            continue
        leaves = [simulated.double().requires_grad_(), real.double().requires_grad_()]
        with torch.enable_grad():
            slopes = torch.autograd.grad(simulation_penalty(off, *leaves), leaves)
        left = torch.split(torch.cat(slopes).float(), [int(a[:, head].sum()) for a in asked])
        for place, (each, mine) in enumerate(zip(asked, left, strict=True)):
            found[place][each[:, head], head] = mine
    return found


def _predictions(credited: Sequence[CreditedSegment]) -> int:
    return sum(int((~each.target.isnan()).sum()) for each in credited if each.target is not None)


def _nothing(learner_logprobs: Tensor) -> TokenLoss:
    return TokenLoss(0.0 * learner_logprobs, {})


def spans_passes(spec: LearningSpec, batch: Minibatch) -> bool:
    """Return whether a term is one number per trajectory, and the segments of one can be in several passes."""
    return reads_sequences(spec) and len({s.trajectory_id for s in batch.segments}) < len(batch.segments)


def reads_sequences(spec: LearningSpec) -> bool:
    """Return whether a term compares tokens of a whole trajectory."""
    return any("sequence" in term.columns for term in spec.terms)
