"""What does the policy say of each action token? One forward pass over a row of trees; log-probs and entropies out.

Layouts of a forward pass:

- `tree`: segments of a prefix tree in one row, with a mask.
- `padded`: segments of similar length in one batch, padded at the end. Used by models that do not support `tree`.
- `sequential`: one segment per forward pass.

The fastest layout whose log-probs agree with the reference forward pass of the model is selected before training, and
so is whether the logits are computed here or by the model.

Logits are made only where an action token is read, and a limited number at a time: beyond it they are made once
more in the backward pass instead of being kept. What is kept is one tensor [places, vocabulary], written over in
place: logits, then log-probs, then their gradient.

Easy to get wrong: some models do more to logits than their output layer says (a soft cap, a scale). What is not known
here is left to the model's own code.
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
from whetstone.learning.attention import NAME, Branches, aim_of
from whetstone.learning.noise import EmbeddingNoise
from whetstone.learning.packing import MicroBatch
from whetstone.policies import (
    FAULTS,
    PlainPass,
    architecture_of,
    brought,
    kind_of,
    masks_are_known,
    plain_pass,
    takes,
    with_attention,
)

Layout = Literal["tree", "padded", "sequential"]
"""Layout of the segments in a forward pass; see the module docstring."""
_LONGER = 1.25
"""A row of a batch is at most so many times as long as the shortest."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a model is computed."""

    layout: Layout
    reads_states: bool
    """Whether its logits are made here, from its hidden states; otherwise by its own code, all at once."""


_WAYS = (
    Way("tree", True), Way("padded", True), Way("padded", False), Way("sequential", True), Way("sequential", False)
)  # fmt: skip
"""From quick to slow."""
_found: dict[Hashable, Way] = {}
"""Of the models that were tried in this process."""


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """What a loss is made of, for the A action tokens of a micro-batch."""

    logprobs: Tensor
    """[A] natural-log probability of each, at the sampler's temperature."""
    entropies: Tensor
    """[A] entropy in nats of the distribution it was drawn from."""
    values: Tensor | None = None
    """[A, heads] what the critic says of the state in front of it; None where the policy has no critic."""
    perturbed: TokenOutputs | None = None
    """The same over noisy embeddings, where a loss compares with that."""


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
        known, computed = architecture_of(model), None
        if known not in _found:
            computed = _tried(model)
            _found[known] = computed.way
        self.way = _found[known]
        if critic is not None and not self.way.reads_states:
            raise PolicyError(f"models of type {kind_of(model)} have no hidden states a critic could read")
        self._computed = computed or _Computed(model, self.way)
        self.network: torch.nn.Module = self._computed.network
        """The model as it is computed here."""
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
        """Whether this model is computed as trees; where not, what segments share is computed for each."""
        return self.way.layout == "tree"

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        """The model lies where it is computed, as long as the block lasts."""
        return brought(self.network, self.device)

    def __call__(self, micro: MicroBatch, temperature: float, *, noise: EmbeddingNoise | None = None) -> TokenOutputs:
        """Log-probs, entropies and values of a micro-batch's action tokens, with gradient where it is enabled.

        Args:
            noise: Also over embeddings with this noise; None: not.
        """
        if noise is not None:
            plain = self(micro, temperature)
            with noise.on(self.network):
                return replace(plain, perturbed=self(micro, temperature))
        return TokenOutputs(*(self._whole or self._found)(micro, temperature))

    def shard(self, divide: Callable[[torch.nn.Module], None]) -> None:
        """Have a model that lies on several devices, a share on each, computed as one.

        Args:
            divide: Divides the parameters of a module, whose `forward` is a whole pass, between those devices, in
                place. Those of the model that was given are not among them any more.
        """
        self._whole = _Whole(self.network, self.critic, self._found)
        divide(self._whole)
        self.model = self.network

    def _found(self, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor, Tensor | None]:
        """([A] log-probs, [A] entropies, [A, heads] values)"""
        with self._precision():
            rows = self._computed(micro)
            if not self.way.reads_states:
                logits = _at(temperature, rows)
                logprobs, entropies = TokenStatistics.apply(logits, micro.row_of, micro.targets)  # type: ignore[no-untyped-call]
                return logprobs, entropies[micro.row_of], None
            values = None if self.critic is None else self.critic(rows)[micro.row_of]
            logprobs, entropies = self._in_chunks(rows, micro, temperature)
        return logprobs, entropies[micro.row_of], values

    def _in_chunks(self, rows: Tensor, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """([A] log-probs, [R] entropies)"""
        network: Any = self.network
        vocabulary = network.get_output_embeddings().weight.shape[0]
        size = max(1, self.logit_bytes // (4 * vocabulary))

        def read(hidden: Tensor, row: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            logits = _at(temperature, _logits(network, hidden))
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

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


class _Whole(torch.nn.Module):
    """A whole pass as one module, so that what gathers a divided model's parameters does it around all of the pass: its
    layers, its output layer, which is read behind them, and its critic."""

    def __init__(self, network: torch.nn.Module, critic: torch.nn.Module | None, found: Callable[..., Any]) -> None:
        super().__init__()
        self.network, self.critic, self._found = network, critic, found

    def forward(self, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `TokenForward._found`."""
        said: tuple[Tensor, Tensor, Tensor | None] = self._found(micro, temperature)
        return said


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


class _Computed:
    """A model in one of the ways.

    Args:
        model: Its parameters are shared.
        way: Which.
    """

    def __init__(self, model: torch.nn.Module, way: Way) -> None:
        anything: Any = model
        self.way = way
        trees = way.layout == "tree"
        self.network: Any = with_attention(model, attention=NAME if trees else anything.config._attn_implementation)
        self._aim = aim_of(self.network) if trees else None
        self._options = {"use_cache": False} if takes(model, "use_cache") else {}

    def __call__(self, micro: MicroBatch) -> Tensor:
        """[R, hidden] the last layer's states, normalised as the output layer wants them; or [R, V] logits.

        Raises:
            PolicyError: The tokens have media, which a model of text cannot read.
        """
        if micro.media:
            raise PolicyError(
                f"a segment has an image at token {micro.media[0].start} of its batch, and {kind_of(self.network)} "
                "reads text only; train a policy that reads images, or leave these episodes out"
            )
        return self.everywhere(micro.ids, micro.positions, micro.branches)[micro.rows]

    def everywhere(self, ids: Tensor, positions: Tensor, branches: Branches) -> Tensor:
        """The same for all tokens [T]."""
        if self._aim is None:
            parts: list[Tensor] = list(torch.split(ids, list(branches.lengths)))
            found: dict[int, Tensor] = {}
            for batch in _of_like_length(branches.lengths, alone=self.way.layout == "sequential"):
                padded = torch.nn.utils.rnn.pad_sequence([parts[i] for i in batch], batch_first=True)
                side_by_side = self._pass(input_ids=padded)
                found |= {i: row[: len(parts[i])] for i, row in zip(batch, side_by_side, strict=True)}
            return torch.cat([found[i] for i in sorted(found)])
        self._aim.branches = branches
        # models make a mask where they are given none; one of four dimensions they leave alone
        mask = ids.new_ones(1, 1, 1, 1, dtype=torch.bool)
        read = self._pass(input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0), attention_mask=mask)[0]
        if not torch.is_grad_enabled():  # nothing of it is computed again
            self._aim.branches = None
        return read

    def _pass(self, **tokens: Tensor) -> Tensor:
        if not self.way.reads_states:
            logits: Tensor = self.network(**tokens, **self._options).logits
            return logits
        body = getattr(self.network, self.network.base_model_prefix)
        states: Tensor = body(**tokens, **self._options).last_hidden_state
        return states


def _of_like_length(lengths: Sequence[int], *, alone: bool) -> Iterator[list[int]]:
    """Which segments are computed side by side; those without a token are not."""
    left = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
    while left:
        longest = lengths[left[0]]
        batch = left[:1] if alone else [i for i in left if _LONGER * lengths[i] >= longest]
        yield batch
        left = left[len(batch) :]


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
def _tried(model: torch.nn.Module) -> _Computed:
    """Return the model in the fastest mode whose outputs equal the reference forward pass; warn if that is not trees.

    Raises:
        PolicyError: The model is not causal, cannot be computed from tokens alone, or not twice alike.
    """
    plain = plain_pass(model)
    for way in _WAYS:
        try:
            computed = _Computed(model, way)
            if _apart(computed, plain) > 1 or (way.layout == "tree" and not masks_are_known(model)):
                continue
        except FAULTS:
            continue
        if way.layout != "tree":
            _check_slope(model, way, plain)
            description = {"padded": "segments in padded rows", "sequential": "one segment at a time"}[way.layout]
            warnings.warn(
                f"{kind_of(model)} cannot be learned as trees: {description}, each from its start", stacklevel=2
            )
        return computed
    raise PolicyError(f"models of type {kind_of(model)} give other numbers each time they are computed")


@torch.enable_grad()
def _check_slope(model: torch.nn.Module, way: Way, plain: PlainPass) -> None:
    """See that the model's own code has a gradient where dropout is off.

    Raises:
        PolicyError: It has none.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ids = torch.tensor(plain.sequences[0], device=plain.logits.device)
    places = torch.arange(len(ids), device=ids.device)
    try:
        found = _Computed(model, way).everywhere(ids, places, Branches((0,), (len(ids),), ((),)))
        if trained:
            torch.autograd.grad(found.float().sum(), trained[:1], allow_unused=True)
    except FAULTS as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise PolicyError(
            f"models of type {kind_of(model)} cannot be trained as they are sampled, without dropout: {said[:200]}"
        ) from error


def _apart(computed: _Computed, plain: PlainPass) -> float:
    """How far a way is from the plain pass of two sequences that begin alike, in one row of trees or side by side."""
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
    found = computed.everywhere(ids, positions, branches)
    logits = _logits(computed.network, found) if computed.way.reads_states else found
    split = torch.split(logits, [len(tokens) for _, _, tokens in parts])
    return max(plain.apart(sequence, start, part) for (sequence, start, _), part in zip(parts, split, strict=True))
