"""What does the policy say of each action token? One forward pass over a row of trees; log-probs and entropies out.

Logits are made only where an action token is read, and a limited number at a time: beyond it they are made once
more in the backward pass instead of being kept. What is kept is one tensor [places, vocabulary], written over in
place: logits, then log-probs, then their gradient.

Easy to get wrong: some models do more to logits than their output layer says (a soft cap, a scale). Each model is
therefore tried against its own forward pass before anything is trained through this one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from whetstone.learning.attention import NAME, Branches
from whetstone.learning.packing import MicroBatch
from whetstone.policies import brought, with_attention

_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 4e-2, torch.float16: 5e-3}
"""How far the two ways to compute logits may be apart, by the numbers of the weights: rounding is."""


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """What a loss is made of, for the A action tokens of a micro-batch."""

    logprobs: Tensor
    """[A] natural-log probability of each, at the sampler's temperature."""
    entropies: Tensor
    """[A] entropy in nats of the distribution it was drawn from."""
    values: Tensor | None = None
    """[A, heads] what the critic says of the state in front of it; None where the policy has no critic."""


class TokenForward:
    """A policy's model as the learner computes it. Parameters are shared; dropout is off, as it is in sampling.

    Args:
        model: A Transformers causal language model.
        logit_bytes: Logits kept for the backward pass at most.
        dtype: Of the arithmetic inside the model; the weights stay as they are.
        checkpointing: Whether each layer's activations are computed again in the backward pass instead of kept.
        critic: [R, hidden] → [R, heads] values; None for none.
        device: Where it is computed, brought there while `at_work`; None: where it lies.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        logit_bytes: int = 2**28,
        dtype: torch.dtype = torch.float32,
        checkpointing: bool = False,
        critic: torch.nn.Module | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.model, self.critic, self.dtype, self.logit_bytes = model, critic, dtype, logit_bytes
        self.device = next(model.parameters()).device if device is None else device
        self._view: Any = _usable_view(model)
        if self._view is None:
            self._plain: Any = with_attention(model, attention=model.config._attn_implementation)  # type: ignore[union-attr,arg-type]
        for module in self.network.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointing:
            network: Any = self.network
            network.activation_checkpointing_enable({"use_reentrant": False})
            network.train()  # the models' code asks for it

    @property
    def network(self) -> torch.nn.Module:
        """The model as it is computed here."""
        return self._view if self._view is not None else self._plain  # type: ignore[no-any-return]

    @property
    def shares(self) -> bool:
        """Whether this model can be computed as trees; where not, each segment is a pass of its own."""
        return self._view is not None

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        """The model lies where it is computed, as long as the block lasts."""
        return brought(self.network, self.device)

    def __call__(self, micro: MicroBatch, temperature: float) -> TokenOutputs:
        """Log-probs, entropies and values of a micro-batch's action tokens, with gradient where it is enabled."""
        rows: Tensor
        with self._precision():
            if self._view is None:
                return self._one_by_one(micro, temperature)
            rows = _hidden(self._view, micro.ids, micro.positions, micro.branches)[micro.rows]
            values = None if self.critic is None else self.critic(rows)[micro.row_of]
            logprobs, entropies = self._in_chunks(rows, micro, temperature)
        return TokenOutputs(logprobs, entropies[micro.row_of], values)

    def _in_chunks(self, rows: Tensor, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """([A] log-probs, [R] entropies)"""
        vocabulary = self._view.get_output_embeddings().weight.shape[0]
        size = max(1, self.logit_bytes // (4 * vocabulary))

        def read(hidden: Tensor, row: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            logits = _at(temperature, _logits(self._view, hidden))
            found: tuple[Tensor, Tensor] = TokenStatistics.apply(logits, row, target)  # type: ignore[no-untyped-call]
            return found

        if len(rows) <= size:
            return read(rows, micro.row_of, micro.targets)
        order = torch.argsort(micro.row_of, stable=True)
        row_of, targets = micro.row_of[order], micro.targets[order]
        starts = torch.arange(0, len(rows), size, device=rows.device)
        cuts = torch.searchsorted(row_of, starts).tolist()
        logprobs, entropies = [], []
        for k, start in enumerate(starts.tolist()):
            mine = slice(cuts[k], cuts[k + 1] if k + 1 < len(cuts) else len(order))
            arguments = rows[start : start + size], row_of[mine] - start, targets[mine]
            of_chunk = (
                checkpoint(read, *arguments, use_reentrant=False) if torch.is_grad_enabled() else read(*arguments)
            )
            logprobs.append(of_chunk[0])
            entropies.append(of_chunk[1])
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return torch.cat(logprobs)[back], torch.cat(entropies)

    def _one_by_one(self, micro: MicroBatch, temperature: float) -> TokenOutputs:
        """For models that know nothing of trees: the model's own pass over each segment."""
        if self.critic is not None:
            raise NotImplementedError("a critic needs a model whose hidden states can be read")
        logits, begin = [], 0
        for length in micro.branches.lengths:
            mine = micro.rows[(micro.rows >= begin) & (micro.rows < begin + length)] - begin
            ids = micro.ids[begin : begin + length].unsqueeze(0)
            logits.append(self._plain(input_ids=ids, use_cache=False, logits_to_keep=mine).logits[0])
            begin += length
        at_temperature = _at(temperature, torch.cat(logits))
        logprobs, entropies = TokenStatistics.apply(at_temperature, micro.row_of, micro.targets)  # type: ignore[no-untyped-call]
        return TokenOutputs(logprobs, entropies[micro.row_of])

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


class TokenStatistics(torch.autograd.Function):
    """(logits [R, V], row [A], target [A]) → (log-probs [A] of the targets in their rows, entropies [R]).

    The logits are used up: their memory holds the log-probs, and in the backward pass, which can be run once,
    their gradient.

        ∂ℓ/∂z = onehot(target) − p,   ∂H/∂z = −p · (log p + H)
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, row: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """See the class."""
        entropies = logits.new_empty(len(logits))
        for rows in _slabs(logits):
            slab = logits[rows]
            slab -= slab.logsumexp(-1, keepdim=True)
            # a logit of −inf is a probability of 0, and 0 · −inf is 0 here
            entropies[rows] = -(slab.exp().mul_(slab.clamp_min(-1e30))).sum(-1)
        ctx.save_for_backward(logits, row, target, entropies)
        return logits[row, target], entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor, of_entropies: Tensor) -> tuple[Tensor, None, None]:
        """See the class."""
        logits, row, target, entropies = ctx.saved_tensors
        weight = torch.zeros_like(entropies).index_add_(0, row, of_logprobs).unsqueeze(1)
        pull, level = of_entropies.unsqueeze(1), entropies.unsqueeze(1)
        through_entropy = bool(of_entropies.any())
        for rows in _slabs(logits):
            slab = logits[rows]
            if through_entropy:
                slope = slab.clamp_min(-1e30).add_(level[rows]).mul_(pull[rows]).add_(weight[rows])
                slab.exp_().mul_(slope.neg_())
            else:
                slab.exp_().mul_(-weight[rows])
        logits.index_put_((row, target), of_logprobs, accumulate=True)
        return logits, None, None


def _slabs(logits: Tensor, numbers: int = 2**18) -> Iterator[slice]:
    """Rows at a time that stay in a processor's cache."""
    step = max(1, numbers // logits.shape[1]) if logits.device.type == "cpu" else len(logits) or 1
    for start in range(0, len(logits), step):
        yield slice(start, start + step)


def _hidden(view: Any, ids: Tensor, positions: Tensor, branches: Branches) -> Tensor:
    """[T, hidden] the last layer's states, normalised as the output layer wants them."""
    body = getattr(view, view.base_model_prefix)
    found: Tensor = body(
        input_ids=ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        # models make a mask where they are given none; one of four dimensions they leave alone
        attention_mask=ids.new_ones(1, 1, 1, 1, dtype=torch.bool),
        use_cache=False,
        branches=branches,
    ).last_hidden_state
    return found[0]


def _logits(view: Any, hidden: Tensor) -> Tensor:
    """[R, V] from [R, hidden], with what some models do to them after the output layer."""
    logits: Tensor = view.get_output_embeddings()(hidden)
    config = view.config.get_text_config()
    if getattr(config, "logit_scale", None) is not None:  # Cohere
        logits = logits * config.logit_scale
    if getattr(config, "logits_scaling", None) is not None:  # Granite
        logits = logits / config.logits_scaling
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _at(temperature: float, logits: Tensor) -> Tensor:
    """The logits the sampler drew from, in float32 or finer."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature == 1.0 else logits / temperature


@torch.no_grad()
def _usable_view(model: torch.nn.Module) -> Any:
    """A view that computes trees, if it gives what the model itself gives on two short sequences; else None."""
    try:
        view: Any = with_attention(model, attention=NAME)
        device = next(model.parameters()).device
        known = view.get_input_embeddings().num_embeddings
        stem, one, other = ([(7 * k + 3) % known for k in places] for places in ((0, 1, 2, 3), (4, 5), (6, 7, 8)))
        branches = Branches(starts=(0, 4, 4), lengths=(4, 2, 3), ancestors=((), (0,), (0,)))
        ids = torch.tensor([*stem, *one, *other], device=device)
        positions = torch.tensor([0, 1, 2, 3, 4, 5, 4, 5, 6], device=device)
        found = _logits(view, _hidden(view, ids, positions, branches))
        plain: Callable[..., Any] = with_attention(model, attention=model.config._attn_implementation)  # type: ignore[union-attr,arg-type]
        for sequence, places in ((stem + one, [0, 1, 2, 3, 4, 5]), (stem + other, [0, 1, 2, 3, 6, 7, 8])):
            expected = plain(input_ids=torch.tensor([sequence], device=device), use_cache=False).logits[0]
            apart = _TOLERANCE[expected.dtype]
            if not torch.allclose(found[places], expected, rtol=apart, atol=apart * expected.abs().max().item()):
                return None
    except (NotImplementedError, AttributeError, TypeError, ValueError, KeyError):
        return None
    return view
