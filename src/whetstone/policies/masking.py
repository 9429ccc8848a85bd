"""Which tokens may a token look at, and what besides? What engine and learner must know of a model's attention.

Windows come with every call of Transformers' attention interface; chunks do not, they are in the configuration; and a
model may have a mask of its own making. So each model's masks are asked what they hold far behind a place, where no
short sequence shows it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from whetstone.policies.view import with_attention

_NAME = "whetstone_masks"
_KNOWN = {"full_attention", "sliding_attention", "chunked_attention"}
_FAR = 2**20
"""Tokens; no context is longer."""


def chunk_of(module: torch.nn.Module) -> int | None:
    """Tokens of the chunks an attention layer keeps to; None where it knows none."""
    config: Any = getattr(module, "config", None)
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is None:
        return None
    kinds, layer = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds is not None and (layer is None or kinds[layer] != "chunked_attention"):
        return None
    return int(chunk)


def softmax_with_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """Shares of attention, where some of it goes to a place that holds nothing.

    Args:
        scores: [..., heads, queries, keys].
        sinks: Its score, [..., heads, queries or 1, 1].
    """
    sinks = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]


@dataclass(frozen=True, slots=True)
class _Heard:
    """A layer's mask, and what the layer tells of it."""

    rule: Callable[..., Tensor]
    """Whether the place of a query looks at a place, for tensors of places: (sequence, head, query, key)."""
    window: int | None
    chunk: int | None

    def is_told(self, end: int) -> bool:
        """Whether the mask is what is told of it, for the last place of a sequence and one in its middle."""
        return all(self._is_told_at(place) for place in {end - 1, end // 2})

    def _is_told_at(self, place: int) -> bool:
        chunk, window = self.chunk or place + 1, self.window or place + 1
        begin = place // chunk * chunk
        edges = {place + 1, 0, begin, begin - 1, place - window, place - window + 1}
        edges |= {place - 2**k for k in range(place.bit_length())}
        keys = torch.tensor([key for key in sorted(edges) if key >= 0])
        expected = (keys <= place) & (keys > place - window) & (keys >= begin)
        zero = torch.tensor(0)
        found = self.rule(zero, zero, torch.full_like(keys, place), keys)
        return torch.equal(found.cpu().expand_as(expected), expected)


class _Hearing(threading.local):
    heard: list[_Heard]


_hearing = _Hearing()


@torch.no_grad()
def masks_are_known(model: torch.nn.Module) -> bool:
    """Whether every mask the model makes is causal, and within the window or chunk its layers tell of and no other.

    The rules are asked at places as far as contexts reach; nothing of that length is computed. What makes no mask
    by Transformers' functions is not told of here.
    """
    anything: Any = model
    kinds = set(getattr(anything.config.get_text_config(), "layer_types", None) or ())
    if not kinds <= _KNOWN:
        return False
    view: Any = with_attention(model, attention=_NAME)
    _hearing.heard = []
    view(input_ids=torch.zeros(1, 4, dtype=torch.long, device=next(model.parameters()).device), use_cache=False)
    return all(heard.is_told(_FAR) for heard in _hearing.heard)


def _mask(*args: Any, mask_function: Callable[..., Tensor], **others: Any) -> Tensor:
    """Transformers' own mask, which brings its rule along."""
    mask: Any = sdpa_mask(*args, mask_function=mask_function, **{**others, "allow_is_causal_skip": False})
    mask.rule = mask_function
    return mask  # type: ignore[no-any-return]


def _hear(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Notes the mask; computes nothing."""
    rule = getattr(attention_mask, "rule", None)
    if rule is not None:
        _hearing.heard.append(_Heard(rule, sliding_window, chunk_of(module)))
    batch, heads, length, _ = query.shape
    return query.new_zeros(batch, length, heads, value.shape[-1]), None


AttentionInterface.register(_NAME, _hear)
AttentionMaskInterface.register(_NAME, _mask)
