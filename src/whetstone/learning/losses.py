"""The loss of one update: the sum of its loss terms over a micro-batch.

Every term is a mean over the tokens that it is about, and all terms go through one backward pass with one divisor.
Weights are therefore scaled to the divisor, with counts over the whole update (`minibatch.py`).

Note:
    The segments of a trajectory can be in several forward passes. A term that computes one number per trajectory is
    computed over the whole update first (`FullBatchLoss`), and differentiated pass by pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from whetstone.algorithms import LossTerm, TokenLoss, column_names, importance_weights
from whetstone.errors import CreditError
from whetstone.learning.packing import MicroBatch
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.plugins import unwrap_partial
from whetstone.trajectory import Segment

T = TypeVar("T")
PerSegment = Sequence[Tensor]
"""[A] numbers of each segment, in the order of the segments of the update."""
POLICY = "policy"
"""Name of the loss term of the objective."""
CRITIC_COLUMNS = frozenset({"critic_values", "critic_targets", "old_critic_values", "value_slopes"})
"""Names of the [A, heads] columns that exist only with a critic."""
PERTURBED_COLUMNS = frozenset({"perturbed_logprobs", "perturbed_critic_values"})
"""Names of the columns of a second forward pass with noisy embeddings."""
FORWARD_COLUMNS = frozenset({
    "learner_logprobs", "old_logprobs", "sampler_logprobs", "advantages", "entropies", "sequence", "turn",
    "usual_entropies",
})  # fmt: skip
"""Names of the columns that every forward pass provides to a loss term; `sequence` is the index of the trajectory."""
WITH_GRADIENT = ("learner_logprobs", "entropies")
"""Names of the columns through which a loss has a gradient."""


@dataclass(frozen=True, slots=True)
class FullBatchLoss:
    """Loss term computed over all tokens of an update, differentiated pass by pass.

    The derivatives at the current weights are stored and multiplied with the log-probs and entropies of each pass. All
    lists are [A] per segment and include weights, corrections and aggregation.
    """

    losses: PerSegment
    """[A] per segment, loss of each token."""
    by_logprob: PerSegment
    """[A] per segment, derivative of the sum of the losses by each log-prob."""
    by_entropy: PerSegment | None = None
    """[A] per segment, derivative by each entropy; None if the loss does not depend on entropies."""
    metrics: Mapping[str, PerSegment] = field(default_factory=dict)
    """[A] per segment, by name of the metric."""

    def of(self, outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
        """Return the term in a micro-batch, with gradient."""
        logprobs, entropies = outputs.logprobs, outputs.entropies
        loss = _concatenate(self.losses, micro).to(logprobs)
        loss = loss + _concatenate(self.by_logprob, micro).to(logprobs) * (logprobs - logprobs.detach())
        if self.by_entropy is not None:
            loss = loss + _concatenate(self.by_entropy, micro).to(entropies) * (entropies - entropies.detach())
        return TokenLoss(
            loss, {name: _concatenate(values, micro).to(logprobs) for name, values in self.metrics.items()}
        )

    def part(self, places: Sequence[int]) -> FullBatchLoss:
        """Return the term restricted to some of the segments, in the given order."""
        return FullBatchLoss(
            [self.losses[i] for i in places],
            [self.by_logprob[i] for i in places],
            _select(self.by_entropy, places),
            {name: [of[i] for i in places] for name, of in self.metrics.items()},
        )


@dataclass(frozen=True, slots=True)
class PassStatistics:
    """Results of forward passes on another rank that the update needs, in addition to the loss."""

    old: list[Tensor] | None
    """Per segment, [A] log-probs before the step; None if they were known."""
    entropy_by_turn: Mapping[int, tuple[float, int]]
    """(sum of entropies, number of tokens) by turn."""


@dataclass(slots=True)
class UpdateLoss:
    """Loss of one update: the function that computes the loss of each micro-batch.

    Created by `Minibatch.loss`.
    """

    terms: Sequence[LossTerm]
    """Loss terms with numbers as weights, which include the factor from a sum over the divisor to the term's mean."""
    old: list[Tensor]
    """Per segment, [A] log-probs before this step's updates."""
    first: bool = False
    """Whether this is the first update of a step: `old` is then a result of the forward passes, and is written here."""
    columns: Mapping[str, PerSegment] = field(default_factory=dict)
    """Further columns that loss terms read, [A] or [A, heads] per segment."""
    use_sampler_logprobs: PerSegment | None = None
    """[A] whether the sampler's log-probs are used instead of the old policy's; None: nowhere."""
    weights: Sequence[float] | None = None
    """Per segment, the weight by `aggregation` of its tokens in terms over `sampled` and `all`; None: 1. Tokens of
    weight 0 are in no metric."""
    critic_weights: Sequence[float] | None = None
    """Per segment, the weight of its tokens in terms over `critic`; None: 1."""
    usual_entropies: Tensor | None = None
    """[turns] mean entropies of recent updates, NaN for a turn without any; None: no earlier update."""
    entropy_by_turn: dict[int, tuple[float, int]] = field(default_factory=dict)
    """(sum, tokens) of entropy at each turn, written by the forward passes if a term reads `usual_entropies`."""
    full_batch: Mapping[str, FullBatchLoss] = field(default_factory=dict)
    """Loss terms that were computed over the whole update, by name."""

    def __call__(self, outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
        """Return the loss of each action token of a micro-batch, with metrics."""
        self.note_old(outputs, micro)
        columns = self.read_columns(outputs, micro)
        if "usual_entropies" in columns:
            self._note_entropies(outputs.entropies.detach(), micro)
        imitates = any(term.over == "expert" for term in self.terms)
        absent = PERTURBED_COLUMNS - columns.keys()  # a loss that is only measured has one forward pass
        parts: list[Tensor] = []
        metrics: dict[str, Tensor] = {}
        for term in self.terms:
            if absent.intersection(term.columns):
                continue
            scale = self._get_scale(term, micro)
            full_batch = self.full_batch.get(term.name)
            result = full_batch.of(outputs, micro) if full_batch is not None else compute_term(term, columns, scale)
            part, reported = result.loss, result.metrics
            if term.over == "expert":
                part = torch.where(micro.expert, part, 0.0)
                reported = {name: values.masked_fill(~micro.expert, torch.nan) for name, values in reported.items()}
            elif imitates and term.over != "all":
                part = torch.where(micro.expert, 0.0, part)
            if self.critic_weights is not None and term.over != "critic" and scale is not None:
                reported = {name: values.masked_fill(scale == 0, torch.nan) for name, values in reported.items()}
            parts.append(part)
            for name, values in reported.items():
                metrics.setdefault(name, values)
            of_term = part.detach()
            metrics[f"loss/{term.name}"] = torch.where(micro.expert, 0.0, of_term) if term.name == POLICY else of_term
        return TokenLoss(functools.reduce(torch.add, parts), metrics)

    def part(self, places: Sequence[int]) -> UpdateLoss:
        """Return the loss of some of the segments, in the given order, for another rank.

        Its statistics are separate; see `add_statistics`.
        """
        wanted = list(places)
        return replace(
            self,
            old=_select(self.old, wanted) or [],
            columns={name: [of[i] for i in wanted] for name, of in self.columns.items()},
            use_sampler_logprobs=_select(self.use_sampler_logprobs, wanted),
            weights=_select(self.weights, wanted),
            critic_weights=_select(self.critic_weights, wanted),
            entropy_by_turn={},
            full_batch={name: of.part(wanted) for name, of in self.full_batch.items()},
        )

    def collect_statistics(self) -> PassStatistics:
        """Return the statistics of a part, on the CPU, to send them to the main process."""
        return PassStatistics([old.cpu() for old in self.old] if self.first else None, self.entropy_by_turn)

    def add_statistics(self, places: Sequence[int], statistics: PassStatistics) -> None:
        """Add the statistics of the part that has these segments.

        Args:
            places: Indices of the segments of the part.
            statistics: Result of `collect_statistics` of the part.
        """
        for place, old in zip(places, statistics.old or (), strict=False):
            if len(old):  # else another part has it
                self.old[place] = old
        for turn, (total, count) in statistics.entropy_by_turn.items():
            self._add_entropy(turn, total, count)

    def note_old(self, outputs: TokenOutputs, micro: MicroBatch) -> None:
        """Store the log-probs of a micro-batch as old log-probs, if this is the first update of a step."""
        if self.first:
            for i, part in micro.by_segment(outputs.logprobs.detach()):
                self.old[i] = part

    def compute_whole(
        self, segments: Sequence[Segment], show: Callable[[Callable[[TokenOutputs, MicroBatch], None]], None]
    ) -> None:
        """Compute the terms that read `sequence` over all tokens of the update.

        Args:
            segments: Segments of the update.
            show: Passes every micro-batch of the segments, at the current weights, to the function that it receives.
        """
        parts: dict[str, list[Tensor]] = {}
        spanning = [term for term in self.terms if "sequence" in term.columns]

        def keep(outputs: TokenOutputs, micro: MicroBatch) -> None:
            self.note_old(outputs, micro)
            columns = self.read_columns(outputs, micro)
            for term in spanning:
                scale = self._get_scale(term, micro)
                if scale is not None:
                    columns[f"scale of {term.name}"] = scale
            for name, column in columns.items():
                for i, part in micro.by_segment(column.detach()):
                    parts.setdefault(name, [column.new_empty(0, *column.shape[1:])] * len(segments))[i] = part

        show(keep)
        counts = [len(part) for part in parts.get("learner_logprobs", [torch.empty(0)] * len(segments))]
        columns = {name: torch.cat(of) for name, of in parts.items()}
        numbers: dict[str, int] = {}
        owner = torch.tensor([numbers.setdefault(s.trajectory_id, len(numbers)) for s in segments], dtype=torch.long)
        columns["sequence"] = owner.repeat_interleave(torch.tensor(counts)).to(columns["sequence"])
        self.full_batch = {
            term.name: _differentiate_term(term, columns, columns.get(f"scale of {term.name}"), counts)
            for term in spanning
        }

    def read_columns(self, outputs: TokenOutputs, micro: MicroBatch) -> dict[str, Tensor]:
        """Return the [A] columns of a micro-batch that loss terms can read, by name."""
        count = torch.tensor(micro.counts, device=outputs.logprobs.device)
        old, drawn = _concatenate(self.old, micro), micro.sampler_logprobs
        drawn = torch.where(drawn.isnan(), old, drawn)  # a token that was not sampled has no ratio to a sampler
        if self.use_sampler_logprobs is not None:
            old = torch.where(_concatenate(self.use_sampler_logprobs, micro).to(old.device), drawn, old)
        columns = {
            "learner_logprobs": outputs.logprobs,
            "old_logprobs": old,
            "sampler_logprobs": drawn,
            "advantages": micro.advantages,
            "entropies": outputs.entropies,
            "sequence": torch.arange(len(count), device=count.device).repeat_interleave(count),
            "turn": micro.turns,
        }
        for name, per_segment in self.columns.items():
            like = outputs.values if name in CRITIC_COLUMNS and outputs.values is not None else outputs.logprobs
            columns[name] = _concatenate(per_segment, micro).to(like)
        if outputs.perturbed is not None:
            columns["perturbed_logprobs"] = outputs.perturbed.logprobs
        if outputs.values is not None and "critic_targets" in columns:
            heads = columns["critic_targets"].shape[1]  # slow copies, which are not trained, follow
            columns["critic_values"] = outputs.values[:, :heads]
            if outputs.perturbed is not None and outputs.perturbed.values is not None:
                columns["perturbed_critic_values"] = outputs.perturbed.values[:, :heads]
        if any("usual_entropies" in term.columns for term in self.terms):
            columns["usual_entropies"] = self._usual_entropies(outputs.entropies, micro)
        return columns

    def _get_scale(self, term: LossTerm, micro: MicroBatch) -> Tensor | None:
        """Return [A] weight of each token in the average of a term; None: 1."""
        if "value_slopes" in term.columns:  # of a penalty that weighs all tokens equally
            return None
        per_segment = {"critic": self.critic_weights, "expert": None}.get(term.over, self.weights)
        return None if per_segment is None else _per_token(per_segment, micro).to(micro.advantages)

    def _usual_entropies(self, entropies: Tensor, micro: MicroBatch) -> Tensor:
        usual = self.usual_entropies if self.usual_entropies is not None else torch.empty(0)
        known = torch.cat([usual, torch.tensor([torch.nan])])  # a turn that no update had before
        return known.to(entropies.detach())[micro.turns.clamp(max=len(known) - 1)]

    def _note_entropies(self, entropies: Tensor, micro: MicroBatch) -> None:
        for turn in torch.unique(micro.turns).tolist():
            of_turn = entropies[micro.turns == turn]
            self._add_entropy(turn, of_turn.sum().item(), len(of_turn))

    def _add_entropy(self, turn: int, total: float, count: int) -> None:
        before = self.entropy_by_turn.get(turn, (0.0, 0))
        self.entropy_by_turn[turn] = (before[0] + total, before[1] + count)


def compute_term(term: LossTerm, columns: Mapping[str, Tensor], scale: Tensor | None) -> TokenLoss:
    """Compute a loss term: weight · scale · importance weight · loss of each token.

    Args:
        term: Loss term whose weight is a number.
        columns: [A] columns by name.
        scale: [A] weight of each token; None: 1.

    Raises:
        CreditError: If the function did not return one loss per token.
    """
    result = _call(term.function, columns)
    check_loss(result, describe_term(term.name, term.function), columns["learner_logprobs"])
    loss, metrics = result.loss, dict(result.metrics)
    if term.correction is not None:
        weights = _call(term.correction, columns)
        loss = weights * loss
        plain = importance_weights(columns["old_logprobs"], columns["sampler_logprobs"])
        metrics |= {
            "importance/weight_mean": weights,
            "importance/weight_squared": weights.square(),
            "importance/truncated_fraction": (weights != plain).float(),
        }
    assert not callable(term.weight)  # see `LossTerm.resolve`
    loss = term.weight * loss
    return TokenLoss(loss if scale is None else scale.to(loss) * loss, metrics)


def describe_term(name: str, function: Callable[..., Any]) -> str:
    """Return the name of a term's function as messages show it: `objective (clipped)`."""
    inner = unwrap_partial(function)
    kind = "objective" if name == POLICY else "loss term"
    return f"{kind} ({getattr(inner, '__name__', type(inner).__name__)})"


def check_loss(result: Any, who: str, logprobs: Tensor) -> None:
    """Check that a loss function returned a `TokenLoss` with one loss per token.

    Args:
        result: Return value of the function.
        who: Name of the function in messages; see `describe_term`.
        logprobs: [A] log-probs, whose shape is expected.

    Raises:
        CreditError: If `result` is anything else.
    """
    if not isinstance(result, TokenLoss):
        remedy = "a loss per token and metrics: from whetstone.algorithms import TokenLoss"
        raise CreditError(f"{who} returned {type(result).__name__}, not TokenLoss(loss, metrics), {remedy}")
    for name, values in {"loss": result.loss, **result.metrics}.items():
        if not isinstance(values, Tensor) or values.shape != logprobs.shape:
            shape = "×".join(map(str, values.shape)) or "a single one" if isinstance(values, Tensor) else repr(values)
            what = "losses" if name == "loss" else f"values of the metric {name}"
            mean = "; do not average, `aggregation` does" if isinstance(values, Tensor) and not values.shape else ""
            raise CreditError(f"{who}: {len(logprobs)} {what} are expected, one per token, got {shape}{mean}")


def _differentiate_term(
    term: LossTerm, columns: Mapping[str, Tensor], scale: Tensor | None, counts: list[int]
) -> FullBatchLoss:
    leaves = {name: columns[name].detach().requires_grad_() for name in WITH_GRADIENT}
    with torch.enable_grad():
        result = compute_term(term, {**columns, **leaves}, scale)
        by_logprob, by_entropy = torch.autograd.grad(
            result.loss.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
        )
    return FullBatchLoss(
        losses=torch.split(result.loss.detach(), counts),
        by_logprob=torch.split(by_logprob, counts),
        by_entropy=torch.split(by_entropy, counts) if bool(by_entropy.any()) else None,
        metrics={name: torch.split(values.detach(), counts) for name, values in result.metrics.items()},
    )


def _call(function: Callable[..., Any], columns: Mapping[str, Tensor]) -> Any:
    return function(*(columns[name] for name in column_names(function)))


def _per_token(numbers: Sequence[float], micro: MicroBatch) -> Tensor:
    """Expand one number per segment to [A] action tokens."""
    of_each = torch.tensor([numbers[i] for i in micro.indices])
    return of_each.repeat_interleave(torch.tensor(micro.counts))


def _select(per_segment: Sequence[T] | None, places: Sequence[int]) -> list[T] | None:
    return None if per_segment is None else [per_segment[i] for i in places]


def _concatenate(per_segment: PerSegment, micro: MicroBatch) -> Tensor:
    return torch.cat([per_segment[i] for i in micro.indices])
