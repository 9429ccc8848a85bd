"""What is an update of reinforcement made of? The objective, and beside it what the recipe asks for.

    loss = w · objective  +  β · pull to the reference  −  e · entropy  +  s · smoothness  +  w · critic's error
         + v · imitation

Easy to get wrong: the objective is a mean over the policy's tokens, the critic's error one over its predictions, and
imitation one over the expert's tokens. All go through one backward pass with one divisor, so the others are scaled to
it, with counts over the whole update. And a trajectory whose context was rewritten lies in several segments, in as many
passes: what is one number for all of it is computed over the whole batch first (`WholeBatch`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from whetstone.algorithms import (
    TokenLoss,
    clipped_value,
    columns_of,
    entropy_bonus,
    entropy_smoothing,
    importance_weights,
    reference_kl,
    squared_value,
    success_value,
    supervised,
)
from whetstone.algorithms.objectives import consistency
from whetstone.errors import CreditError
from whetstone.learning.packing import MicroBatch
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.plugins import unbound
from whetstone.recipe import CriticSettings, EntropySettings, SmoothnessSettings
from whetstone.trajectory import Segment

T = TypeVar("T")
PerSegment = Sequence[Tensor]
"""[A] of each segment, in the order of the segments that are updated on."""
FORWARD_COLUMNS = frozenset({
    "learner_logprobs", "old_logprobs", "sampler_logprobs", "advantages", "entropies", "sequence", "turn",
})  # fmt: skip
"""Columns an objective may read that the pass itself gives; a trajectory is a sequence."""


@dataclass(frozen=True, slots=True)
class WholeBatch:
    """The policy's part of an update's loss, taken over all of its tokens at once: its value at each token, and its
    slopes there at the present weights, by which it is differentiated pass by pass.

    Each is [A] per segment; weights, corrections and aggregation are in them.
    """

    losses: PerSegment
    by_logprob: PerSegment
    by_entropy: PerSegment | None = None
    """None where the loss does not depend on entropies."""
    metrics: Mapping[str, PerSegment] = field(default_factory=dict)

    def of(self, outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
        """Its part in a micro-batch: that value, with that gradient."""
        logprobs, entropies = outputs.logprobs, outputs.entropies
        loss = _of(self.losses, micro).to(logprobs)
        loss = loss + _of(self.by_logprob, micro).to(logprobs) * (logprobs - logprobs.detach())
        if self.by_entropy is not None:
            loss = loss + _of(self.by_entropy, micro).to(entropies) * (entropies - entropies.detach())
        return TokenLoss(loss, {name: _of(values, micro).to(logprobs) for name, values in self.metrics.items()})

    def part(self, places: Sequence[int]) -> WholeBatch:
        """The same of some of the segments, in this order."""
        return WholeBatch(
            [self.losses[i] for i in places],
            [self.by_logprob[i] for i in places],
            _some(self.by_entropy, places),
            {name: [of[i] for i in places] for name, of in self.metrics.items()},
        )


@dataclass(frozen=True, slots=True)
class LossFindings:
    """What a pass over segments finds out beside their loss."""

    old: list[Tensor] | None
    """Per segment, [A] log-probs before the step; None where they were known."""
    entropy_by_turn: Mapping[int, tuple[float, int]]
    """(sum, tokens) at each turn."""


@dataclass(slots=True)
class UpdateLoss:
    """The loss of one update."""

    objective: Callable[..., Any]
    """Columns, each [T], by the names of its parameters → TokenLoss"""
    old: list[Tensor]
    """Per segment, [A] log-probs before this step's updates."""
    first: bool = False
    """Nothing was updated since: `old` is what the pass itself finds, and is written here."""
    weights: Sequence[float] | None = None
    """Per segment, what its tokens' losses are multiplied by, so that divided by the update's divisor they are
    aggregated as the recipe says; None: all the same."""
    extra: Mapping[str, PerSegment] = field(default_factory=dict)
    """More columns the objective reads."""
    policy_weight: float = 1.0
    reference: PerSegment | None = None
    """Log-probs under the reference."""
    kept: PerSegment | None = None
    """[A] where the log-probs kept from when tokens were drawn take the place of the old policy's; None: nowhere."""
    reference_weight: float = 0.0
    first_attempt: PerSegment | None = None
    """Weight of the pull to the reference beside that one, token by token; None: none."""
    reference_estimator: Any = "k2"
    smoothness: SmoothnessSettings | None = None
    entropy: EntropySettings | None = None
    usual_entropies: Tensor | None = None
    """[turns] of recent updates, NaN where there was none; read with a band."""
    band_strength: float = 0.0
    targets: PerSegment | None = None
    """[A, heads] what critics should say, NaN where one is not asked."""
    values: PerSegment | None = None
    """[A, heads] what they said before this step's updates."""
    critic: CriticSettings | None = None
    value_weight: float = 0.0
    """For each prediction, over the update's divisor."""
    value_shares: Sequence[float] | None = None
    """Per segment, what that is multiplied by; None: by 1. Where it is set, tokens of weight 0 are critics' alone, and
    the policy reports nothing of them."""
    value_slopes: PerSegment | None = None
    """[A, heads] by how much a penalty grows with each value; None: there is none."""
    slope_weight: float = 0.0
    """Of that penalty, over the update's divisor."""
    correction: Callable[..., Any] | None = None
    """Columns → [T] what each token's objective counts for, where another policy may have drawn it."""
    imitation_weight: float = 0.0
    """For each of the expert's tokens, over the update's divisor."""
    entropy_by_turn: dict[int, tuple[float, int]] = field(default_factory=dict)
    """(sum, tokens) of entropy at each turn, as the update found it."""
    whole: WholeBatch | None = None
    """The policy's part where it was computed over the whole batch; then neither objective nor correction is asked."""

    def __call__(self, outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
        """The loss of each action token of a micro-batch."""
        logprobs = outputs.logprobs
        self.note_old(outputs, micro)
        of_policy = self.whole.of(outputs, micro) if self.whole is not None else self._of_policy(outputs, micro)
        loss, metrics = of_policy.loss, dict(of_policy.metrics)
        policy_loss = loss.detach()
        beside: list[Tensor] = []
        if self.reference is not None and (self.reference_weight > 0 or self.first_attempt is not None):
            pull = reference_kl(logprobs, _of(self.reference, micro), estimator=self.reference_estimator)
            beside.append(self.reference_weight * pull.loss)
            if self.first_attempt is not None:
                beside.append(_of(self.first_attempt, micro).to(pull.loss) * pull.loss)
            metrics |= pull.metrics
        if self.entropy is not None:
            bonus = self._bonus(outputs.entropies, micro)
            beside.append(self.entropy.weight * bonus.loss)
            metrics |= bonus.metrics
        if self.smoothness is not None and outputs.perturbed is not None:
            apart = consistency(logprobs, outputs.perturbed.logprobs)
            beside.append(self.smoothness.policy * apart.loss)
            metrics["consistency/policy"] = apart.loss.detach()
        weight = self._weight_of(micro)
        for part in beside:
            loss = loss + (part if weight is None else weight.to(part) * part)
        if self.value_shares is not None and weight is not None:
            metrics = {name: values.masked_fill(weight == 0, torch.nan) for name, values in metrics.items()}
        if self.targets is not None and self.critic is not None:
            error = self._error(outputs, micro)
            weighted = self.value_weight * error.loss
            if self.value_shares is not None:
                weighted = _per_token(self.value_shares, micro).to(weighted) * weighted
            if self.value_slopes is not None and outputs.values is not None:
                slopes = _of(self.value_slopes, micro).to(outputs.values)
                weighted = weighted + self.slope_weight * (slopes * outputs.values[:, : slopes.shape[1]]).sum(1)
            loss, metrics = loss + weighted, metrics | error.metrics
            metrics["loss/value"] = weighted.detach()
        if self.imitation_weight > 0:
            shown = supervised(logprobs)
            imitated = torch.where(micro.expert, self.imitation_weight * shown.loss, 0.0)
            loss = torch.where(micro.expert, imitated, loss)
            metrics["loss/imitation"] = imitated.detach()
        metrics["loss/policy"] = torch.where(micro.expert, 0.0, policy_loss)
        return TokenLoss(loss, metrics)

    def part(self, places: Sequence[int]) -> UpdateLoss:
        """The same loss of some of the segments, in this order, for whoever else computes those; it finds out of its
        own what the pass finds."""
        wanted = list(places)
        return replace(
            self,
            old=_some(self.old, wanted) or [],
            weights=_some(self.weights, wanted),
            extra={name: [of[i] for i in wanted] for name, of in self.extra.items()},
            reference=_some(self.reference, wanted),
            kept=_some(self.kept, wanted),
            first_attempt=_some(self.first_attempt, wanted),
            targets=_some(self.targets, wanted),
            values=_some(self.values, wanted),
            value_shares=_some(self.value_shares, wanted),
            value_slopes=_some(self.value_slopes, wanted),
            entropy_by_turn={},
            whole=self.whole.part(wanted) if self.whole is not None else None,
        )

    def found(self) -> LossFindings:
        """What a part found out of its own."""
        return LossFindings([old.cpu() for old in self.old] if self.first else None, self.entropy_by_turn)

    def take(self, places: Sequence[int], found: LossFindings) -> None:
        """What the part of these segments found out."""
        for place, old in zip(places, found.old or (), strict=False):
            if len(old):  # else another part has it
                self.old[place] = old
        for turn, (total, count) in found.entropy_by_turn.items():
            before = self.entropy_by_turn.get(turn, (0.0, 0))
            self.entropy_by_turn[turn] = (before[0] + total, before[1] + count)

    def note_old(self, outputs: TokenOutputs, micro: MicroBatch) -> None:
        """Keep the log-probs before this step's updates, where this pass is what finds them."""
        if self.first:
            for i, part in micro.by_segment(outputs.logprobs.detach()):
                self.old[i] = part

    def over_whole_batch(
        self, segments: Sequence[Segment], read: Callable[[Callable[[TokenOutputs, MicroBatch], None]], None]
    ) -> WholeBatch:
        """The policy's part over all tokens of the update, for what compares tokens of different passes.

        Args:
            segments: Of the update.
            read: Hands every micro-batch of them, as the weights have it now, to what it is given.
        """
        parts: dict[str, list[Tensor]] = {}
        weights = [torch.empty(0)] * len(segments)

        def keep(outputs: TokenOutputs, micro: MicroBatch) -> None:
            self.note_old(outputs, micro)
            weight = self._weight_of(micro)
            columns = self.columns(outputs, micro)
            if weight is not None:
                columns["weight"] = weight
            for name, column in columns.items():
                for i, part in micro.by_segment(column.detach()):
                    parts.setdefault(name, [column.new_empty(0)] * len(segments))[i] = part

        read(keep)
        counts = [len(part) for part in parts.get("learner_logprobs", weights)]
        columns = {name: torch.cat(of) for name, of in parts.items()}
        numbers: dict[str, int] = {}
        owner = torch.tensor([numbers.setdefault(s.trajectory_id, len(numbers)) for s in segments], dtype=torch.long)
        columns["sequence"] = owner.repeat_interleave(torch.tensor(counts)).to(columns["sequence"])
        leaves = {name: columns[name].requires_grad_() for name in ("learner_logprobs", "entropies")}
        with torch.enable_grad():
            found = self._weighted(columns, columns.pop("weight", None))
            by_logprob, by_entropy = torch.autograd.grad(
                found.loss.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        return WholeBatch(
            losses=torch.split(found.loss.detach(), counts),
            by_logprob=torch.split(by_logprob, counts),
            by_entropy=torch.split(by_entropy, counts) if bool(by_entropy.any()) else None,
            metrics={name: torch.split(values.detach(), counts) for name, values in found.metrics.items()},
        )

    def _of_policy(self, outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
        """Objective, correction and weights, of a micro-batch whose trajectories lie in no other."""
        return self._weighted(self.columns(outputs, micro), self._weight_of(micro))

    def _weighted(self, columns: Mapping[str, Tensor], weight: Tensor | None) -> TokenLoss:
        of_policy = _ask(self.objective, columns)
        check_loss(of_policy, self.objective, columns["learner_logprobs"])
        loss, metrics = of_policy.loss, dict(of_policy.metrics)
        if self.correction is not None:
            weights = _ask(self.correction, columns)
            loss = weights * loss
            plain = importance_weights(columns["old_logprobs"], columns["sampler_logprobs"])
            metrics |= {
                "importance/weight_mean": weights,
                "importance/weight_squared": weights.square(),
                "importance/truncated_fraction": (weights != plain).float(),
            }
        loss = self.policy_weight * loss
        return TokenLoss(loss if weight is None else weight.to(loss) * loss, metrics)

    def _weight_of(self, micro: MicroBatch) -> Tensor | None:
        """[A] what aggregation multiplies each token by; None: all by 1."""
        if self.weights is None:
            return None
        return _per_token(self.weights, micro).to(micro.advantages)

    def columns(self, outputs: TokenOutputs, micro: MicroBatch) -> dict[str, Tensor]:
        """[A] each, what objective and correction may read of a micro-batch."""
        count = torch.tensor(micro.counts, device=outputs.logprobs.device)
        old, drawn = _of(self.old, micro), micro.sampler_logprobs
        drawn = torch.where(drawn.isnan(), old, drawn)  # what nobody drew has no ratio to whoever drew it
        if self.kept is not None:
            old = torch.where(_of(self.kept, micro).to(old.device), drawn, old)
        columns = {
            "learner_logprobs": outputs.logprobs,
            "old_logprobs": old,
            "sampler_logprobs": drawn,
            "advantages": micro.advantages,
            "entropies": outputs.entropies,
            "sequence": torch.arange(len(count), device=count.device).repeat_interleave(count),
            "turn": micro.turns,
        }
        for name, per_segment in self.extra.items():
            columns[name] = _of(per_segment, micro).to(outputs.logprobs)
        return columns

    def _bonus(self, entropies: Tensor, micro: MicroBatch) -> TokenLoss:
        assert self.entropy is not None
        found = entropies.detach()
        for turn in torch.unique(micro.turns).tolist():
            of_turn = found[micro.turns == turn]
            total, count = self.entropy_by_turn.get(turn, (0.0, 0))
            self.entropy_by_turn[turn] = (total + of_turn.sum().item(), count + len(of_turn))
        if self.entropy.band is None or self.usual_entropies is None:
            return entropy_bonus(entropies)
        known = torch.cat([self.usual_entropies, torch.tensor([torch.nan])])  # a turn no update had before
        usual = known.to(found)[micro.turns.clamp(max=len(known) - 1)]
        low, high = 1 - self.entropy.band, 1 + self.entropy.band
        return entropy_smoothing(entropies, usual, low=low, high=high, size=1.0, strength=self.band_strength)

    def _error(self, outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
        assert outputs.values is not None  # a critic is there where targets are
        assert self.targets is not None
        assert self.critic is not None
        targets = _of(self.targets, micro).to(outputs.values)
        values = outputs.values[:, : targets.shape[1]]  # behind them stand slow copies, which are not trained
        if self.critic.loss == "success":
            error = success_value(values, targets)
        elif self.critic.clip is not None and self.values is not None:
            error = clipped_value(values, _of(self.values, micro).to(values), targets, clip=self.critic.clip)
        else:
            error = squared_value(values, targets)
        if self.smoothness is None or outputs.perturbed is None or outputs.perturbed.values is None:
            return error
        beside = outputs.perturbed.values[:, : targets.shape[1]].masked_fill(targets.isnan(), 0.0)
        apart = consistency(values.masked_fill(targets.isnan(), 0.0), beside)
        said = apart.loss.detach().masked_fill(targets.isnan().all(1), torch.nan)
        return TokenLoss(error.loss + self.smoothness.value * apart.loss, {**error.metrics, "consistency/value": said})


def name_of_objective(objective: Callable[..., Any]) -> str:
    """Return an objective as messages name it."""
    inner = unbound(objective)
    return f"objective ({getattr(inner, '__name__', type(inner).__name__)})"


def check_loss(found: Any, objective: Callable[..., Any], logprobs: Tensor) -> None:
    """Check that an objective returned a TokenLoss with one loss per token.

    Raises:
        CreditError: It returned anything else.
    """
    who = name_of_objective(objective)
    if not isinstance(found, TokenLoss):
        remedy = "a loss per token and metrics: from whetstone.algorithms import TokenLoss"
        raise CreditError(f"{who} returned {type(found).__name__}, not TokenLoss(loss, metrics), {remedy}")
    for name, values in {"loss": found.loss, **found.metrics}.items():
        if not isinstance(values, Tensor) or values.shape != logprobs.shape:
            shape = "×".join(map(str, values.shape)) or "a single one" if isinstance(values, Tensor) else repr(values)
            what = "losses" if name == "loss" else f"values of the metric {name}"
            mean = "; do not average, `aggregation` does" if isinstance(values, Tensor) and not values.shape else ""
            raise CreditError(f"{who}: {len(logprobs)} {what} are expected, one per token, got {shape}{mean}")


def _ask(function: Callable[..., Any], columns: Mapping[str, Tensor]) -> Any:
    return function(*(columns[name] for name in columns_of(function)))


def _per_token(numbers: Sequence[float], micro: MicroBatch) -> Tensor:
    """[A] a number of each segment at its tokens."""
    of_each = _of([torch.tensor([number]) for number in numbers], micro)
    return of_each.repeat_interleave(torch.tensor(micro.counts))


def _some(per_segment: Sequence[T] | None, places: Sequence[int]) -> list[T] | None:
    return None if per_segment is None else [per_segment[i] for i in places]


def _of(per_segment: PerSegment, micro: MicroBatch) -> Tensor:
    return torch.cat([per_segment[i] for i in micro.indices])
