"""Forward pass over a packed micro-batch: log-probs, entropies and critic values of the action tokens.

Layouts of a forward pass:

- `tree`: segments of a prefix tree in one row, with a mask.
- `padded`: segments of similar length in one batch, padded at the end. Used by models that do not support `tree`.
- `sequential`: one segment per forward pass.

The fastest layout whose log-probs agree with the reference forward pass of the model is selected before training, and
so is whether the logits are computed here or by the model.

Logits are computed only at the rows of action tokens, and a limited number at a time. Beyond the limit they are
recomputed in the backward pass instead of being stored. One tensor [rows, vocabulary] is stored and overwritten in
place: logits, then log-probs, then their gradient.

Note:
    Some models transform the logits after their output layer (a soft cap, a scale). Transformations that are not known
    here are left to the model's own code.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from whetstone.errors import PolicyError
from whetstone.learning.embedding_noise import EmbeddingNoise
from whetstone.learning.packing import MicroBatch
from whetstone.learning.tree_attention import NAME, Branches, attach_attention_context
from whetstone.policies import (
    FAULTS,
    ReferenceForward,
    architecture_key,
    forward_accepts,
    masks_are_known,
    model_type,
    moved_to_device,
    run_reference_forward,
    with_attention,
)

Layout = Literal["tree", "padded", "sequential"]
"""Layout of the segments in a forward pass: `tree`, `padded` or `sequential`; see the module docstring."""
_LONGER = 1.25
"""Maximum ratio of the longest to the shortest row of a padded batch."""


@dataclass(frozen=True, slots=True)
class ForwardMode:
    """How a model is computed in training: layout, and where logits are computed."""

    layout: Layout
    """Layout of the segments in a forward pass."""
    reads_states: bool
    """Whether logits are computed here, from hidden states; False: by the model's own code, all at once."""


_MODES = (
    ForwardMode("tree", True),
    ForwardMode("padded", True),
    ForwardMode("padded", False),
    ForwardMode("sequential", True),
    ForwardMode("sequential", False),
)
"""Modes to try, fastest first."""
_MODE_BY_ARCHITECTURE: dict[Hashable, ForwardMode] = {}
"""Selected mode of each model architecture that was tried in this process."""


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """Outputs of a forward pass at the A action tokens of a micro-batch, the inputs of a loss."""

    logprobs: Tensor
    """[A] natural log-probs at the sampling temperature."""
    entropies: Tensor
    """[A] entropies in nats of the next-token distributions."""
    values: Tensor | None = None
    """[A, heads] critic values of the state before each token; None without a critic."""
    perturbed: TokenOutputs | None = None
    """Outputs with noisy embeddings, if a loss compares with them."""


class TokenForward:
    """Forward pass of a model in training, with dropout off as in sampling.

    Created by `build_forward`. Parameters are shared with the model.

    Args:
        model: Transformers causal language model.
        logit_bytes: Maximum size of the logits that are stored for the backward pass, in bytes.
        dtype: Precision of the operations inside the model; the weights are unchanged.
        checkpointing: Whether activations of each layer are recomputed in the backward pass instead of stored.
        critic: Value heads, [R, hidden] → [R, heads]; None: no critic.
        device: Device of the computation, to which the model is moved while `at_work`; None: that of the weights.

    Raises:
        PolicyError: If no mode agrees with the model's own forward pass, or a critic cannot read hidden states.
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
        known, computed = architecture_key(model), None
        if known not in _MODE_BY_ARCHITECTURE:
            computed = _select_mode(model)
            _MODE_BY_ARCHITECTURE[known] = computed.way
        self.way = _MODE_BY_ARCHITECTURE[known]
        if critic is not None and not self.way.reads_states:
            raise PolicyError(
                f"models of type {model_type(model)} have no hidden states that a critic could read; "
                "use an advantage without critic"
            )
        self._computed = computed or _Computed(model, self.way)
        self.network: torch.nn.Module = self._computed.network
        """Copy of the model with the selected attention, which shares the parameters."""
        self._whole: _Whole | None = None
        for module in self.network.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointing:
            network: Any = self.network
            network.activation_checkpointing_enable({"use_reentrant": False})
            network.train()  # the models' code asks for it

    @property
    def shares(self) -> bool:
        """Whether the model is computed as prefix trees, so that shared tokens are computed once."""
        return self.way.layout == "tree"

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        """Move the model to the device of its computation within the `with` block."""
        return moved_to_device(self.network, self.device)

    def __call__(self, micro: MicroBatch, temperature: float, *, noise: EmbeddingNoise | None = None) -> TokenOutputs:
        """Compute log-probs, entropies and values at the action tokens of a micro-batch.

        Args:
            micro: Micro-batch.
            temperature: Divisor of the logits in sampling.
            noise: Embedding noise of a second forward pass; None: one pass.
        """
        if noise is not None:
            plain = self(micro, temperature)
            with noise.add_noise(self.network):
                return replace(plain, perturbed=self(micro, temperature))
        return TokenOutputs(*(self._whole or self._compute)(micro, temperature))

    def shard_parameters(self, divide: Callable[[torch.nn.Module], None]) -> None:
        """Divide the parameters of the model among several devices (FSDP).

        Args:
            divide: Divides the parameters of a module in place; its `forward` is a whole pass. The parameters of the
                original model are not among them afterwards.
        """
        self._whole = _Whole(self.network, self.critic, self._compute)
        divide(self._whole)
        self.model = self.network

    def _compute(self, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return ([A] log-probs, [A] entropies, [A, heads] values or None)."""
        with self._precision():
            rows = self._computed(micro)
            if not self.way.reads_states:
                logits = _apply_temperature(temperature, rows)
                logprobs, entropies = TokenStatistics.apply(logits, micro.row_of, micro.targets)  # type: ignore[no-untyped-call]
                return logprobs, entropies[micro.row_of], None
            values = None if self.critic is None else self.critic(rows)[micro.row_of]
            logprobs, entropies = self._in_chunks(rows, micro, temperature)
        return logprobs, entropies[micro.row_of], values

    def _in_chunks(self, rows: Tensor, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Return ([A] log-probs, [R] entropies), computing a limited number of logits at a time."""
        network: Any = self.network
        vocabulary = network.get_output_embeddings().weight.shape[0]
        size = max(1, self.logit_bytes // (4 * vocabulary))

        def read(hidden: Tensor, row: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            logits = _apply_temperature(temperature, _logits(network, hidden))
            statistics: tuple[Tensor, Tensor] = TokenStatistics.apply(logits, row, target)  # type: ignore[no-untyped-call]
            return statistics

        if len(rows) <= size:
            return read(rows, micro.row_of, micro.targets)
        order = torch.argsort(micro.row_of, stable=True)
        row_of, targets = micro.row_of[order], micro.targets[order]
        starts = torch.arange(0, len(rows), size, device=rows.device)
        cuts = torch.searchsorted(row_of, starts).tolist()
        logprobs, entropies = [], []
        for k, start in enumerate(starts.tolist()):
            chunk = slice(cuts[k], cuts[k + 1] if k + 1 < len(cuts) else len(order))
            arguments = rows[start : start + size], row_of[chunk] - start, targets[chunk]
            of_chunk = (
                checkpoint(read, *arguments, use_reentrant=False) if torch.is_grad_enabled() else read(*arguments)
            )
            logprobs.append(of_chunk[0])
            entropies.append(of_chunk[1])
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return torch.cat(logprobs)[back], torch.cat(entropies)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


class _Whole(torch.nn.Module):
    """Whole forward pass as one module, layers, output layer and critic, around which FSDP gathers parameters."""

    def __init__(self, network: torch.nn.Module, critic: torch.nn.Module | None, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.network, self.critic, self._compute = network, critic, compute

    def forward(self, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute the outputs of a micro-batch; see `TokenForward._compute`."""
        outputs: tuple[Tensor, Tensor, Tensor | None] = self._compute(micro, temperature)
        return outputs


class TokenStatistics(torch.autograd.Function):
    """(logits [R, V], row [A], target [A]) → (log-probs [A] of the targets in their rows, entropies [R]).

    The logits are consumed: their memory stores the log-probs and, in the backward pass, which can run once, their
    gradient.

        ∂ℓ/∂z = onehot(target) − p,   ∂H/∂z = −p · (log p + H)
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, row: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log-probs and entropies in the memory of the logits; see the class."""
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
        """Compute the gradient by the logits in their memory; see the class."""
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
    """Yield slices of rows that fit into a processor's cache."""
    step = max(1, numbers // logits.shape[1]) if logits.device.type == "cpu" else len(logits) or 1
    for start in range(0, len(logits), step):
        yield slice(start, start + step)


class _Computed:
    """Model computed in one mode.

    Args:
        model: Model whose parameters are shared.
        way: Mode of the computation.
    """

    def __init__(self, model: torch.nn.Module, way: ForwardMode) -> None:
        anything: Any = model
        self.way = way
        trees = way.layout == "tree"
        self.network: Any = with_attention(model, attention=NAME if trees else anything.config._attn_implementation)
        self._attention_context = attach_attention_context(self.network) if trees else None
        self._options = {"use_cache": False} if forward_accepts(model, "use_cache") else {}

    def __call__(self, micro: MicroBatch) -> Tensor:
        """Return [R, hidden] normalized final hidden states, the input of the output layer, or [R, V] logits.

        Raises:
            PolicyError: If the tokens have images, which a text model cannot read.
        """
        if micro.media:
            raise PolicyError(
                f"a segment has an image at token {micro.media[0].start} of its batch, and {model_type(self.network)} "
                "reads text only; train a policy that reads images, or leave these episodes out"
            )
        return self.everywhere(micro.ids, micro.positions, micro.branches)[micro.rows]

    def everywhere(self, ids: Tensor, positions: Tensor, branches: Branches) -> Tensor:
        """Return [T, hidden] states or [T, V] logits of all tokens.

        Args:
            ids: [T] token ids.
            positions: [T] position of each token in its segments.
            branches: Branches of the prefix trees.
        """
        if self._attention_context is None:
            parts: list[Tensor] = list(torch.split(ids, list(branches.lengths)))
            rows_by_segment: dict[int, Tensor] = {}
            for batch in _batch_by_length(branches.lengths, alone=self.way.layout == "sequential"):
                padded = torch.nn.utils.rnn.pad_sequence([parts[i] for i in batch], batch_first=True)
                side_by_side = self._pass(input_ids=padded)
                rows_by_segment |= {i: row[: len(parts[i])] for i, row in zip(batch, side_by_side, strict=True)}
            return torch.cat([rows_by_segment[i] for i in sorted(rows_by_segment)])
        self._attention_context.branches = branches
        # models create a mask if they receive none, and leave one of four dimensions unchanged
        mask = ids.new_ones(1, 1, 1, 1, dtype=torch.bool)
        read = self._pass(input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0), attention_mask=mask)[0]
        if not torch.is_grad_enabled():  # nothing of it is computed again
            self._attention_context.branches = None
        return read

    def _pass(self, **tokens: Tensor) -> Tensor:
        if not self.way.reads_states:
            logits: Tensor = self.network(**tokens, **self._options).logits
            return logits
        body = getattr(self.network, self.network.base_model_prefix)
        states: Tensor = body(**tokens, **self._options).last_hidden_state
        return states


def _batch_by_length(lengths: Sequence[int], *, alone: bool) -> Iterator[list[int]]:
    """Yield the segments of each padded batch; segments without a token are left out."""
    left = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
    while left:
        longest = lengths[left[0]]
        batch = left[:1] if alone else [i for i in left if _LONGER * lengths[i] >= longest]
        yield batch
        left = left[len(batch) :]


def _logits(view: Any, hidden: Tensor) -> Tensor:
    """Compute [R, V] logits from [R, hidden], with transformations that some models apply after the output layer."""
    logits: Tensor = view.get_output_embeddings()(hidden)
    config = view.config.get_text_config()
    if getattr(config, "logit_scale", None) is not None:  # Cohere
        logits = logits * config.logit_scale
    if getattr(config, "logits_scaling", None) is not None:  # Granite
        logits = logits / config.logits_scaling
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _apply_temperature(temperature: float, logits: Tensor) -> Tensor:
    """Return the logits at the sampler's temperature, in float32 or finer."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature == 1.0 else logits / temperature


@torch.no_grad()
def _select_mode(model: torch.nn.Module) -> _Computed:
    """Return the model in the fastest mode whose outputs equal those of the reference forward pass.

    A warning reports any layout other than `tree`.

    Raises:
        PolicyError: If the model is not causal, cannot be computed from tokens only, or is not deterministic.
    """
    plain = run_reference_forward(model)
    for way in _MODES:
        try:
            computed = _Computed(model, way)
            if _max_deviation(computed, plain) > 1 or (way.layout == "tree" and not masks_are_known(model)):
                continue
        except FAULTS:
            continue
        if way.layout != "tree":
            _check_slope(model, way, plain)
            description = {"padded": "segments in padded rows", "sequential": "one segment at a time"}[way.layout]
            warnings.warn(
                f"{model_type(model)} cannot be trained as prefix trees: {description}, each from its start",
                stacklevel=2,
            )
        return computed
    raise PolicyError(
        f"models of type {model_type(model)} are not deterministic: two forward passes give different numbers; "
        "use a model whose forward pass has no randomness"
    )


@torch.enable_grad()
def _check_slope(model: torch.nn.Module, way: ForwardMode, plain: ReferenceForward) -> None:
    """Check that the model's own code has a gradient with dropout off.

    Raises:
        PolicyError: If it has none.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ids = torch.tensor(plain.sequences[0], device=plain.logits.device)
    places = torch.arange(len(ids), device=ids.device)
    try:
        outputs = _Computed(model, way).everywhere(ids, places, Branches((0,), (len(ids),), ((),)))
        if trained:
            torch.autograd.grad(outputs.float().sum(), trained[:1], allow_unused=True)
    except FAULTS as error:
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        raise PolicyError(
            f"models of type {model_type(model)} cannot be trained as they are sampled, without dropout: {detail[:200]}"
        ) from error


def _max_deviation(computed: _Computed, plain: ReferenceForward) -> float:
    """Return the maximum error relative to the tolerance of the reference.

    Two sequences with a shared prefix are compared.
    """
    (first, second), stem, device = plain.sequences, plain.stem, plain.logits.device
    length = len(first)
    if computed.way.layout == "tree":
        branches = Branches((0, stem, stem), (stem, length - stem, length - stem), ((), (0,), (0,)))
        parts = [(0, 0, first[:stem]), (0, stem, first[stem:]), (1, stem, second[stem:])]
    else:
        branches = Branches((0, 0), (length, length - 3), ((), ()))
        parts = [(0, 0, first), (1, 0, second[: length - 3])]
    ids = torch.tensor([token for _, _, tokens in parts for token in tokens], device=device)
    positions = torch.cat([torch.arange(start, start + len(tokens)) for _, start, tokens in parts]).to(device)
    outputs = computed.everywhere(ids, positions, branches)
    logits = _logits(computed.network, outputs) if computed.way.reads_states else outputs
    split = torch.split(logits, [len(tokens) for _, _, tokens in parts])
    return max(
        plain.relative_error(sequence, start, part) for (sequence, start, _), part in zip(parts, split, strict=True)
    )
