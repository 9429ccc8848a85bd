"""How is a model of Llama's kind computed with nothing but its arithmetic? Block by block, from its own modules.

    h ← h + o(attention(rotated(q(norm h)), rotated(k(norm h)), v(norm h)))
    h ← h + down(silu(gate(norm h)) · up(norm h))

Llama, Mistral, Qwen2, Qwen3 and SmolLM are made of these blocks. They are told by their modules, not by their name,
and compared with the model's own forward pass before they are used: what has another formula in the same modules is
found out. Weights are read where they lie, adapters are called where they stand, so nothing is to be kept in step.

Easy to get wrong: sums in half precision are rounded in another order than the model's own. In float32, where runs
are repeated to the last bit, every operation here is one that gives the bits of the model's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, rms_norm

from whetstone.inference.attention import attend_to_rows
from whetstone.inference.beginnings import Reading, attend, reading_of
from whetstone.inference.cache import RowCache
from whetstone.inference.columns import Columns, suits
from whetstone.inference.compiled import compiled
from whetstone.inference.threads import Shares

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_NORMS_OF_HEADS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_WIDER = 4
"""Times as wide as a state is what lies within a layer, at most."""

InProduct = Callable[[], contextlib.AbstractContextManager[None]]
"""In whose block products and attention are computed: by all threads, where what lies between takes one."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The blocks of a causal language model.

    Args:
        model: The model, whose modules are these blocks': see `blocks_of`.
        reads_beginnings: Rows that begin alike read it once: see `beginnings.py`.
    """

    model: Any
    reads_beginnings: bool = True
    columns: Columns | None = None
    """The same blocks in half precision, where this machine can."""

    def states(self, ids: Tensor, places: Tensor, cache: RowCache, prompts: Sequence[int] | None = None) -> Tensor:
        """Feed tokens to the rows the cache is aimed at.

        Args:
            ids: [N, L], those of the rows first; what follows fills up the products.
            places: [N, L] where in its row each stands.
            prompts: As of `reading_of`.

        Returns:
            [N, L, hidden] normed, as the head reads them.
        """
        if self.columns is not None and len(ids) == len(cache.chosen):
            return self.columns.states(ids, places, cache)
        embeddings = self.model.model.embed_tokens.weight
        if embeddings.dtype == torch.float32:  # its bits are what they are with so many threads
            return self._states(ids, places, cache, prompts, contextlib.nullcontext)
        shares = Shares(_WIDER * ids.numel() * embeddings.shape[1])
        with shares.between():
            return self._states(ids, places, cache, prompts, shares.product)

    def _states(
        self, ids: Tensor, places: Tensor, cache: RowCache, prompts: Sequence[int] | None, product: InProduct
    ) -> Tensor:
        body = self.model.model
        hidden: Tensor = body.embed_tokens(ids)
        cos, sin = (each.unsqueeze(2) for each in body.rotary_emb(hidden, places))
        windows = [_window(layer.self_attn, cache.capacity) for layer in body.layers]
        reading = None
        if self.reads_beginnings and ids.shape[1] == 1 and not any(windows):
            reading = reading_of(cache, hidden.dtype, prompts)
        step = _Pass(cache, cos, sin, reading, product)
        for number, layer in enumerate(body.layers):
            hidden = hidden + step.attended(
                layer.self_attn, number, windows[number], _normed(layer.input_layernorm, hidden)
            )
            hidden = hidden + step.transformed(layer.mlp, _normed(layer.post_attention_layernorm, hidden))
        return _normed(body.norm, hidden)

    def logits(self, states: Tensor) -> Tensor:
        """[…, hidden] → […, V], each row in one piece."""
        logits: Tensor = self.model.lm_head(states)
        return logits.contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """What all layers of one pass have in common."""

    cache: RowCache
    cos: Tensor
    """[N, L, 1, D]"""
    sin: Tensor
    reading: Reading | None
    """How rows that begin alike are read; None: each as it lies."""
    product: InProduct

    def attended(self, attention: Any, number: int, window: int | None, normed: Tensor) -> Tensor:
        """[N, L, hidden] what a layer's attention adds."""
        with self.product():
            projected = [attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)]
        query, key, value = (each.unflatten(-1, (-1, attention.head_dim)) for each in projected)
        norms = dict(attention.named_children())
        if "q_norm" in norms:
            query, key = _normed(norms["q_norm"], query), _normed(norms["k_norm"], key)
        rows = len(self.cache.chosen)
        turned = _rotated(torch.cat((query, key), dim=2).contiguous(), self.cos, self.sin)
        query, key = torch.split(turned[:rows], [query.shape[2], key.shape[2]], dim=2)
        keys, values = self.cache.layers[number].update(key.transpose(1, 2), value[:rows].transpose(1, 2))
        scale = attention.scaling
        with self.product():
            if self.reading is not None:
                mixed = attend(query[:, 0], keys, values, self.cache, number, self.reading, scale)
            else:
                across = query.transpose(1, 2)
                mixed, _ = attend_to_rows(attention, across, keys, values, None, scaling=scale, sliding_window=window)
        mixed = mixed.reshape(rows, normed.shape[1], -1)
        if rows < len(normed):
            mixed = pad(mixed, (0, 0, 0, 0, 0, len(normed) - rows))
        with self.product():
            added: Tensor = attention.o_proj(mixed)
        return added

    def transformed(self, mlp: Any, normed: Tensor) -> Tensor:
        """[N, L, hidden] what a layer's network of one token adds."""
        with self.product():
            gate, up = mlp.gate_proj(normed), mlp.up_proj(normed)
        inner = mlp.act_fn(gate) * up
        with self.product():
            added: Tensor = mlp.down_proj(inner)
        return added


def blocks_of(model: torch.nn.Module, *, reads_beginnings: bool = True) -> Blocks | None:
    """The model's blocks, where its modules are those; None where it has others, more or fewer."""
    if {name for name, _ in model.named_children()} != {"model", "lm_head"}:
        return None
    body: Any = model.model
    if {name for name, _ in body.named_children()} != {"embed_tokens", "layers", "norm", "rotary_emb"}:
        return None
    if not (all(map(_is_block, body.layers)) and _is_norm(body.norm)):
        return None
    functions = compiled() if suits(model) else None
    return Blocks(model, reads_beginnings, None if functions is None else Columns(model, functions))


def _is_block(layer: Any) -> bool:
    if {name for name, _ in layer.named_children()} != _LAYER:
        return False
    attention = {name for name, _ in layer.self_attn.named_children()}
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [module for name, module in layer.self_attn.named_children() if name in _NORMS_OF_HEADS]
    return (
        attention in (_ATTENTION, _ATTENTION | _NORMS_OF_HEADS)
        and {name for name, _ in layer.mlp.named_children()} == _MLP
        and all(map(_is_norm, norms))
    )


def _is_norm(module: Any) -> bool:
    return {name for name, _ in module.named_parameters()} == {"weight"} and "variance_epsilon" in vars(module)


def _window(attention: Any, capacity: int) -> int | None:
    """Places a layer looks back; None: as many as a row holds. Mistral's has it in the configuration alone."""
    held = {**vars(attention.config), **vars(attention)}
    window: int | None = held.get("sliding_window")
    return None if window is None or window >= capacity else window


def _normed(norm: Any, states: Tensor) -> Tensor:
    return rms_norm(states, (states.shape[-1],), norm.weight, norm.variance_epsilon)


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[B, L, heads, D] turned by the angles of its places, [B, L, 1, D]."""
    first, second = states.chunk(2, dim=-1)
    across = torch.cat((-second, first), dim=-1)
    if states.dtype == torch.float32:  # rounded between the two, as models do
        return states * cos + across * sin
    return torch.addcmul(states * cos, across, sin)
