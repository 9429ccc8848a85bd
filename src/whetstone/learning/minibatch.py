"""What does one update learn from? A share of the step's groups, with log-probs, weights and columns.

Easy to get wrong: what a trajectory counts for is counted over all its segments, and the divisor over the whole update.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from whetstone.algorithms import TokenLoss, columns_of, is_flat_without_advantage, token_weights
from whetstone.algorithms.objectives import hybrid_weight, simulation_penalty
from whetstone.algorithms.schedules import mixing_weight, phase_weight
from whetstone.errors import CreditError
from whetstone.learning.credit import BatchCredit, CreditedSegment
from whetstone.learning.losses import FORWARD_COLUMNS, UpdateLoss
from whetstone.learning.model_trainer import ModelTrainer, action_places, action_tokens
from whetstone.learning.sequence_logprobs import OF_SUMS, sums_level
from whetstone.learning.spec import LearningSpec
from whetstone.recipe import AggregationSettings, ImitationSettings, StoredMixtureSettings
from whetstone.trajectory import Author, OffPolicy, Segment, Trajectory


def minibatches_of(
    spec: LearningSpec,
    trainer: ModelTrainer,
    given: BatchCredit,
    shown: Sequence[Segment],
    count: int,
    taught: Sequence[Sequence[CreditedSegment]] = (),
    gaps: Tensor | None = None,
) -> list[Minibatch]:
    """The minibatches of a step: the groups dealt out in turn, each with what its update reads beside its segments.

    Args:
        shown: Demonstrations.
        count: How many.
        taught: What critics alone learn from, group by group.
        gaps: [M] how far the world of the policy's own turns is off that of what is taught; None: it is the same.
    """
    settings, temperature = spec.settings, spec.temperature
    asked = set(columns_of(spec.objective))
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
            batch.old, batch.old_known = trainer.logprobs(batch.segments, temperature=temperature), True
            batch.before = batch.old
        if settings.first_attempt_kl > 0:
            first = given.columns.spread(given.columns["first_attempt"], "turn", "token")
            batch.first_attempt = batch.placed_as(given, settings.first_attempt_kl * first)
        if settings.holds_on or asked & {"reference_logprobs", "reference_sums"}:
            batch.reference = trainer.logprobs(batch.segments, temperature=temperature, of="reference")
            batch.extra["reference_logprobs"] = batch.reference
        if "teacher_logprobs" in asked:
            hinted = spec.teacher_reads is not None
            batch.extra["teacher_logprobs"] = (
                batch.column(given, "teacher_logprobs")
                if hinted
                else trainer.logprobs(batch.segments, temperature=temperature, of="teacher")
            )
        if gaps is not None:
            apart = given.columns.at_actions(given.columns.spread(gaps, "turn", "token"))
            batch.value_slopes = _simulation_slopes(batch, [apart[i][k] for i, k in batch.placed])
        of = [given.columns.held[i].trajectory for i, _ in batch.placed]
        batch.of_others = [_drawn_otherwise(trajectory) for trajectory in of]
        batch.kept = _kept(given, batch)
        if batch.kept is not None and batch.old_known:
            drawn = batch.column(given, "sampler_logprobs")
            batch.old = [
                torch.where(k.to(o.device), d.to(o), o) for k, d, o in zip(batch.kept, drawn, batch.old, strict=True)
            ]
        for name in asked - FORWARD_COLUMNS - batch.extra.keys() - OF_SUMS:
            batch.extra[name] = batch.column(given, name)
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
    """Whether what has no credit has no gradient either."""
    settings = spec.settings
    others = (settings.entropy, settings.consistency_regularization, spec.critic)
    beside = settings.holds_on or any(other is not None for other in others)
    return not beside and is_flat_without_advantage(spec.objective)


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
    """What one update learns from; lists are per segment."""

    segments: list[Segment]
    credited: list[CreditedSegment]
    """Of the policy's own segments, which stand first."""
    old: list[Tensor]
    weights: list[float] | None
    placed: list[tuple[int, int]]
    """Of the policy's own: (number of the trajectory, number of the segment there)."""
    taught: list[CreditedSegment] = field(default_factory=list)
    """Behind them, what critics alone learn from."""
    old_known: bool = False
    """Whether the log-probs before the step were computed by a pass of their own."""
    value_slopes: list[Tensor] | None = None
    """[A, heads] of each segment, by how much a penalty grows with its values; None: there is none."""
    reference: list[Tensor] | None = None
    first_attempt: list[Tensor] | None = None
    """[A] weight of the pull to it, beside the one all tokens have."""
    kept: list[Tensor] | None = None
    extra: dict[str, list[Tensor]] = field(default_factory=dict)
    divisor: int = 1
    """Tokens the loss is divided by."""
    flat: Collection[int] = ()
    """Segments whose loss has no gradient: they are only computed for what is reported."""
    of_others: Sequence[bool] = ()
    """Of the policy's own: whether it was drawn earlier, or under another view."""
    before: list[Tensor] = field(default_factory=list)
    """Log-probs before any update of the step, whatever ratios compare with."""

    @classmethod
    def of(
        cls,
        share: Sequence[CreditedSegment],
        shown: Sequence[Segment],
        weights: Mapping[str, float] | None,
        taught: Sequence[CreditedSegment] = (),
    ) -> Minibatch:
        """The policy's own segments, then those for critics alone, then demonstrations."""
        segments = [*(each.segment for each in (*share, *taught)), *shown]
        of_each = None
        if weights is not None or taught:
            of_each = [(weights or {}).get(segment.trajectory_id, 1.0) for segment in segments]
            of_each[len(share) : len(share) + len(taught)] = [0.0] * len(taught)
        placed = [each.placed for each in share]
        return cls(segments, list(share), [torch.empty(0)] * len(segments), of_each, placed, list(taught))

    def loss(self, spec: LearningSpec, trainer: ModelTrainer, *, first: bool, critic_only: bool = False) -> UpdateLoss:
        """All that the recipe asks for beside the objective; or what critics learn from alone."""
        settings = spec.settings
        step, place = trainer.optimizers.done, int(trainer.optimizers.place)
        critic, entropy, imitation = spec.critic, settings.entropy, settings.imitation
        shown = imitation_weight(imitation, step) if imitation is not None else 0.0
        mixed = imitation is not None and imitation.mixed
        learned = [*self.credited, *self.taught]
        targets = self._with_shown([each.target for each in learned if each.target is not None], math.nan)
        return UpdateLoss(
            objective=_nothing,
            old=self.old,
            first=first and not self.old_known,
            weights=self.weights,
            extra=self.extra,
            policy_weight=0.0 if critic_only else 1 - shown if mixed else 1.0,
            reference=self.reference,
            kept=self.kept,
            reference_weight=settings.reference_kl,
            first_attempt=self.first_attempt,
            reference_estimator=settings.reference_estimator,
            smoothness=settings.consistency_regularization,
            entropy=entropy,
            band_strength=entropy.strength * phase_weight(place, settings.steps, form=entropy.phase)
            if entropy
            else 0.0,
            targets=targets,
            values=self._with_shown([each.value for each in learned if each.value is not None], 0.0),
            critic=critic,
            value_weight=critic.weight * self.per(self.predictions) if critic is not None else 0.0,
            value_shares=self._value_shares(settings.offline_mixture),
            value_slopes=self.value_slopes,
            slope_weight=self._slope_weight(spec),
            imitation_weight=shown * self.per(self.imitated),
        )

    def column(self, given: BatchCredit, name: str) -> list[Tensor]:
        """A column of the batch at the action tokens of each segment."""
        return self.placed_as(given, given.columns[name])

    def placed_as(self, given: BatchCredit, numbers: Tensor) -> list[Tensor]:
        """[K] numbers of action tokens, at those of each segment; 0 at demonstrations."""
        at_actions = given.columns.at_actions(numbers)
        found = [at_actions[i][k] for i, k in self.placed]
        rest = self.segments[len(self.placed) :]
        return [*found, *(torch.zeros(action_tokens(segment)) for segment in rest)]

    def _with_shown(self, of_own: Sequence[Tensor], nothing: float) -> list[Tensor] | None:
        if not of_own:
            return None
        rest = self.segments[len(of_own) :]
        return [*of_own, *(torch.full((action_tokens(s), of_own[0].shape[1]), nothing) for s in rest)]

    @property
    def own_tokens(self) -> int:
        """How many action tokens of the policy's own episodes there are."""
        return sum(map(action_tokens, self.segments[: len(self.placed)]))

    @property
    def predictions(self) -> int:
        """How many values critics are to foretell of the policy's own episodes."""
        return _predictions(self.credited)

    def _slope_weight(self, spec: LearningSpec) -> float:
        """What a penalty on values counts for, beside being divided by the divisor."""
        stored = spec.settings.offline_mixture
        if stored is None or spec.critic is None:
            return 0.0
        return stored.simulation_weight * spec.critic.weight * self.divisor

    def _value_shares(self, settings: StoredMixtureSettings | None) -> list[float] | None:
        """Per segment, what a critic's error there counts for beside one on the policy's own; None: all alike."""
        if not self.taught or settings is None:
            return None
        weight = hybrid_weight(self.predictions, _predictions(self.taught), offline_weight=settings.critic_weight)
        rest = len(self.segments) - len(self.placed) - len(self.taught)
        return [*[1.0] * len(self.placed), *[weight] * len(self.taught), *[1.0] * rest]

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


def imitation_weight(settings: ImitationSettings, step: int) -> float:
    """What imitation counts for at a step of reinforcement."""
    if settings.final_weight is None:
        return settings.weight
    return mixing_weight(step, start=settings.weight, end=settings.final_weight, decay=settings.decay_steps)


def _nothing(learner_logprobs: Tensor) -> TokenLoss:
    return TokenLoss(0.0 * learner_logprobs, {})


def spans_passes(spec: LearningSpec, batch: Minibatch) -> bool:
    """Whether something is one number for a trajectory whose segments may lie in different passes."""
    return reads_sequences(spec) and len({s.trajectory_id for s in batch.segments}) < len(batch.segments)


def reads_sequences(spec: LearningSpec) -> bool:
    """Whether objective or correction compare tokens of a whole trajectory."""
    functions = [spec.objective, *([spec.correction] if spec.correction is not None else [])]
    return any("sequence" in columns_of(function) for function in functions)
