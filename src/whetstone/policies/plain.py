"""What does a model itself say of some tokens? Its own forward pass, one sequence at a time, with nothing kept between.

Engine and learner compute models in faster ways: over rows of keys, as trees. Each way is held against this one before
it is used, since what a model's code does is not told by its configuration.

Easy to get wrong: a mask that is wrong far behind a token's place shows on no short sequence. `masking.py` asks
for it.
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
from whetstone.policies.view import with_attention

_STEM, _END = 8, 6
"""Tokens of the beginning both sequences share, and of what each has behind it."""
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}
"""How far two ways to compute a distribution may be apart, by the numbers of the weights: rounding is."""
FAULTS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, IndexError, LookupError, NotImplementedError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What a model's code raises where it is computed in a way it does not know."""


@dataclass(frozen=True, slots=True)
class PlainPass:
    """Two sequences that begin alike, and what the model says behind each of their tokens."""

    stem: int
    """Tokens they share."""
    sequences: tuple[list[int], list[int]]
    """Of equal length."""
    logits: Tensor
    """[2, length, V]"""

    def apart(self, sequence: int, start: int, found: Tensor) -> float:
        """How far logits are from the plain ones, as a share of what is allowed: beyond 1 they are others.

        The size of the difference of two distributions' log-probs at a token, over that of the plain ones' around their
        mean. The largest counts; in half precision the middle one, since there rounding alone sends a token to another
        expert of a mixture.

        Args:
            found: [n, V] logits behind the tokens from `start` on of a sequence.
        """
        expected = _centred(self.logits[sequence, start : start + len(found)])
        off = (_centred(found) - expected).norm(dim=-1)
        share = off / expected.norm(dim=-1).clamp_min(1e-12)
        halves = self.logits.dtype in (torch.bfloat16, torch.float16)
        if not expected.isfinite().all():
            return 0.0  # nothing to compare; whoever asks the model is told
        worst = share.nan_to_num(nan=torch.inf)
        return float(worst.median() if halves else worst.max()) / _TOLERANCE[self.logits.dtype]


@torch.no_grad()
def plain_pass(model: torch.nn.Module) -> PlainPass:
    """The model's own pass over each of two short sequences that begin alike.

    Raises:
        PolicyError: The model cannot be computed from tokens alone, or what it says of a token depends on later ones.
    """
    anything: Any = model
    kind = kind_of(model)
    known = vocabulary_of(model)
    numbers = [(7 * place + 3) % known for place in range(_STEM + 2 * _END)]
    stem, one, other = numbers[:_STEM], numbers[_STEM : _STEM + _END], numbers[_STEM + _END :]
    sequences = ([*stem, *one], [*stem, *other])
    device = next(model.parameters()).device
    view: Any = with_attention(model, attention=anything.config._attn_implementation)
    options = {"use_cache": False} if takes(model, "use_cache") else {}
    try:
        with quiet():
            found = [view(input_ids=torch.tensor([ids], device=device), **options).logits[0] for ids in sequences]
    except FAULTS as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise PolicyError(f"models of type {kind} cannot be computed from tokens alone: {said[:200]}") from error
    logits = torch.stack(found)
    if logits.shape[:2] != (2, _STEM + _END):
        raise PolicyError(f"models of type {kind} do not give one distribution a token")
    plain = PlainPass(_STEM, sequences, logits)
    if plain.apart(0, 0, logits[1, :_STEM]) > 1:
        raise PolicyError(
            f"this model of type {kind} is not causal: what it says of a token depends on later ones. Only "
            "decoders can be sampled and trained"
        )
    return plain


def architecture_of(model: torch.nn.Module) -> Hashable:
    """All that decides in which ways a model can be computed, whatever its weights: what was found out once holds."""
    anything: Any = model
    first = next(model.parameters())
    modules = tuple((type(module), "forward" in vars(module)) for module in model.modules())
    config = anything.config.to_json_string(use_diff=False)
    return modules, config, anything.base_model_prefix, first.dtype, first.device


def kind_of(model: torch.nn.Module) -> str:
    """What Transformers calls models like it: `llama`."""
    anything: Any = model
    return str(anything.config.get_text_config().model_type)


def setting_of(config: Any, name: str) -> Any:
    """What a configuration says; None where it does not, or says something else for each layer."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # what Transformers raises of layers that differ
        return None


def vocabulary_of(model: torch.nn.Module) -> int:
    """How many token ids the model knows."""
    anything: Any = model
    return int(anything.get_input_embeddings().num_embeddings)


def takes(model: torch.nn.Module, name: str) -> bool:
    """Whether the model's forward pass has a parameter of this name."""
    return name in inspect.signature(type(model).forward).parameters


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Transformers' remarks, of caches and kernels, are not ours to make while something is only tried."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _centred(logits: Tensor) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide - wide.mean(-1, keepdim=True)
