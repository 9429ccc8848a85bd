"""Reference forward pass without batching or KV cache, used to verify optimized code paths.

Engine and learner compute models in faster ways: over KV slots, as trees. Each is compared with this one before use,
because a configuration does not determine the computation of a model's code.

Note:
    A mask that is wrong far from a token's position is not visible in short sequences. `attention_masks.py` tests it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from whetstone.errors import PolicyError
from whetstone.policies.shared_weights import with_attention

_STEM, _END = 8, 6
"""Length of the shared prefix of both sequences in tokens, and of the rest of each."""
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}
"""Maximum relative error between two ways to compute a distribution, by the data type of the weights."""
FAULTS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, IndexError, LookupError, NotImplementedError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""Exceptions of a model's code if it does not support a way of computing it."""


@dataclass(frozen=True, slots=True)
class ReferenceForward:
    """Two sequences with a shared prefix, and the model's own logits at each of their tokens.

    Created by `run_reference_forward`, to check faster ways to compute a model.
    """

    stem: int
    """Length of the shared prefix in tokens."""
    sequences: tuple[list[int], list[int]]
    """Token ids of both sequences, of equal length."""
    logits: Tensor
    """[2, length, V] logits of the model's own forward pass."""

    def relative_error(self, sequence: int, start: int, logits: Tensor) -> float:
        """Return the error of logits relative to the reference, divided by the tolerance; above 1 they differ.

        The error at a token is the norm of the difference of the log-probs, divided by the norm of the centered
        reference. The result is the maximum over tokens. In half precision it is the median, because rounding can send
        a token to another expert of a mixture.

        Args:
            sequence: Index of the sequence, 0 or 1.
            start: Position of the first token.
            logits: [n, V] logits at the tokens from `start` on.
        """
        expected = _centered(self.logits[sequence, start : start + len(logits)])
        off = (_centered(logits) - expected).norm(dim=-1)
        share = off / expected.norm(dim=-1).clamp_min(1e-12)
        halves = self.logits.dtype in (torch.bfloat16, torch.float16)
        if not expected.isfinite().all():
            return 0.0  # nothing to compare; the error appears when the model is used
        worst = share.nan_to_num(nan=torch.inf)
        return float(worst.median() if halves else worst.max()) / _TOLERANCE[self.logits.dtype]


@torch.no_grad()
def run_reference_forward(model: torch.nn.Module) -> ReferenceForward:
    """Run the model's own forward pass on two short sequences with a shared prefix.

    Raises:
        PolicyError: If the model needs more inputs than tokens, or is not causal.
    """
    anything: Any = model
    kind = model_type(model)
    known = vocabulary_size(model)
    numbers = [(7 * place + 3) % known for place in range(_STEM + 2 * _END)]
    stem, one, other = numbers[:_STEM], numbers[_STEM : _STEM + _END], numbers[_STEM + _END :]
    sequences = ([*stem, *one], [*stem, *other])
    device = next(model.parameters()).device
    view: Any = with_attention(model, attention=anything.config._attn_implementation)
    options = {"use_cache": False} if forward_accepts(model, "use_cache") else {}
    try:
        with silence_transformers():
            outputs = [view(input_ids=torch.tensor([ids], device=device), **options).logits[0] for ids in sequences]
    except FAULTS as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PolicyError(f"models of type {kind} cannot be computed from tokens only: {reason[:200]}") from error
    logits = torch.stack(outputs)
    if logits.shape[:2] != (2, _STEM + _END):
        raise PolicyError(f"models of type {kind} do not return one distribution per token")
    plain = ReferenceForward(_STEM, sequences, logits)
    if plain.relative_error(0, 0, logits[1, :_STEM]) > 1:
        raise PolicyError(
            f"this model of type {kind} is not causal: its logits depend on later tokens. Only "
            "decoders can be sampled and trained"
        )
    return plain


def architecture_key(model: torch.nn.Module) -> Hashable:
    """Return a hashable key of the properties that determine how a model can be computed.

    These are all properties except the weights.
    """
    anything: Any = model
    first = next(model.parameters())
    modules = tuple((type(module), "forward" in vars(module)) for module in model.modules())
    config = anything.config.to_json_string(use_diff=False)
    return modules, config, anything.base_model_prefix, first.dtype, first.device


def model_type(model: torch.nn.Module) -> str:
    """Return the model type in Transformers, such as `llama`."""
    anything: Any = model
    return str(anything.config.get_text_config().model_type)


def get_setting(config: Any, name: str) -> Any:
    """Return a setting of a model configuration; None if it is missing or differs between layers."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # Transformers raises it if layers differ
        return None


def vocabulary_size(model: torch.nn.Module) -> int:
    """Return the number of token ids of a model: the number of its embeddings."""
    anything: Any = model
    return int(anything.get_input_embeddings().num_embeddings)


def forward_accepts(model: torch.nn.Module, name: str) -> bool:
    """Return whether a model's `forward` has a parameter with this name."""
    return name in inspect.signature(type(model).forward).parameters


@contextlib.contextmanager
def silence_transformers() -> Iterator[None]:
    """Silence warnings of Transformers within the `with` block.

    Used while ways to compute a model are compared.
    """
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _centered(logits: Tensor) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide - wide.mean(-1, keepdim=True)
