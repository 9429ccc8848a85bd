"""Forward pass of Llama-like models, block by block from the model's own modules.

    h ← h + o(attention(rotated(q(norm h)), rotated(k(norm h)), v(norm h)))
    h ← h + down(silu(gate(norm h)) · up(norm h))

Llama, Mistral, Qwen2, Qwen3 and SmolLM consist of these blocks. Such models are recognized by their modules, not by
their name. The result is compared with the model's own forward pass before use, which detects other formulas in the
same modules. Weights are read in place and adapters are called as modules, so there is no copy to update.

Note:
    In half precision, sums are rounded in another order than in the model's own forward pass. In float32 every
    operation gives the bits of the model's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, rms_norm

from whetstone.inference.attention import slot_attention
from whetstone.inference.cascade_attention import DecodeReadPlan, attend_by_plan, plan_reads
from whetstone.inference.compiled_blocks import CompiledBlocks, is_compilable
from whetstone.inference.compiled_decoder import compiled_decoder
from whetstone.inference.kv_cache import KVCache
from whetstone.inference.thread_tuning import ProductThreads

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_NORMS_OF_HEADS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_WIDER = 4
"""Maximum ratio of the width of an intermediate tensor to the hidden size."""

InProduct = Callable[[], contextlib.AbstractContextManager[None]]
"""Returns a context manager for matrix products and attention, in which all threads are used."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Decoder blocks of a Llama-like causal language model, created by `find_blocks`.

    Args:
        model: Transformers model, whose modules are called.
        reads_beginnings: Whether a shared prefix is read once for several slots; see `cascade_attention.py`.
        compiled: The same blocks by compiled functions.
    """

    model: Any
    reads_beginnings: bool = True
    compiled: CompiledBlocks | None = None
    """Blocks computed by compiled functions; None if the machine or the model does not allow it."""

    def compute_states(
        self, ids: Tensor, places: Tensor, cache: KVCache, prompts: Sequence[int] | None = None
    ) -> Tensor:
        """Compute hidden states of new tokens, and write their keys and values to the selected KV slots.

        Args:
            ids: [N, L] token ids: first the selected slots, then padding.
            places: [N, L] position of each token in its slot.
            cache: KV cache after `KVCache.select_slots`.
            prompts: Same as for `plan_reads`.

        Returns:
            [N, L, hidden] states after the last norm, the input of the language-model head.
        """
        embeddings = self.model.model.embed_tokens.weight
        if embeddings.dtype == torch.float32:  # the bits depend on the number of threads
            return self._states(ids, places, cache, prompts, contextlib.nullcontext)
        shares = ProductThreads(_WIDER * ids.numel() * embeddings.shape[1])
        with shares.reduce_threads():
            return self._states(ids, places, cache, prompts, shares.use_all_threads)

    def _states(
        self, ids: Tensor, places: Tensor, cache: KVCache, prompts: Sequence[int] | None, product: InProduct
    ) -> Tensor:
        body = self.model.model
        hidden: Tensor = body.embed_tokens(ids)
        cos, sin = (each.unsqueeze(2) for each in body.rotary_emb(hidden, places))
        windows = [_window(layer.self_attn, cache.capacity) for layer in body.layers]
        reading = None
        if self.reads_beginnings and ids.shape[1] == 1 and not any(windows):
            reading = plan_reads(cache, hidden.dtype, prompts)
        step = _Pass(cache, cos, sin, reading, product)
        for number, layer in enumerate(body.layers):
            hidden = hidden + step.attend(
                layer.self_attn, number, windows[number], _apply_norm(layer.input_layernorm, hidden)
            )
            hidden = hidden + step.apply_mlp(layer.mlp, _apply_norm(layer.post_attention_layernorm, hidden))
        return _apply_norm(body.norm, hidden)

    def compute_logits(self, states: Tensor) -> Tensor:
        """Compute [..., V] contiguous logits from [..., hidden] states."""
        logits: Tensor = self.model.lm_head(states)
        return logits.contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """Values that all layers of one forward pass share."""

    cache: KVCache
    cos: Tensor
    """[N, L, 1, D] cosines of the rotary embedding."""
    sin: Tensor
    """[N, L, 1, D] sines of the rotary embedding."""
    reading: DecodeReadPlan | None
    """Keys to read if slots share prefixes; None: each slot reads its own keys."""
    product: InProduct

    def attend(self, attention: Any, number: int, window: int | None, normed: Tensor) -> Tensor:
        """Return the [N, L, hidden] attention output of a layer.

        Args:
            attention: Attention module.
            number: Index of the layer.
            window: Sliding window in tokens; None: all positions are visible.
            normed: [N, L, hidden] states after the input norm.
        """
        with self.product():
            projected = [attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)]
        query, key, value = (each.unflatten(-1, (-1, attention.head_dim)) for each in projected)
        norms = dict(attention.named_children())
        if "q_norm" in norms:
            query, key = _apply_norm(norms["q_norm"], query), _apply_norm(norms["k_norm"], key)
        rows = len(self.cache.chosen)
        turned = _apply_rotary(torch.cat((query, key), dim=2).contiguous(), self.cos, self.sin)
        query, key = torch.split(turned[:rows], [query.shape[2], key.shape[2]], dim=2)
        keys, values = self.cache.layers[number].update(key.transpose(1, 2), value[:rows].transpose(1, 2))
        scale = attention.scaling
        with self.product():
            if self.reading is not None:
                mixed = attend_by_plan(query[:, 0], keys, values, self.cache, number, self.reading, scale)
            else:
                across = query.transpose(1, 2)
                mixed, _ = slot_attention(attention, across, keys, values, None, scaling=scale, sliding_window=window)
        mixed = mixed.reshape(rows, normed.shape[1], -1)
        if rows < len(normed):
            mixed = pad(mixed, (0, 0, 0, 0, 0, len(normed) - rows))
        with self.product():
            added: Tensor = attention.o_proj(mixed)
        return added

    def apply_mlp(self, mlp: Any, normed: Tensor) -> Tensor:
        """Return the [N, L, hidden] MLP output of a layer for states after the second norm."""
        with self.product():
            gate, up = mlp.gate_proj(normed), mlp.up_proj(normed)
        inner = mlp.act_fn(gate) * up
        with self.product():
            added: Tensor = mlp.down_proj(inner)
        return added


def find_blocks(model: torch.nn.Module, *, reads_beginnings: bool = True) -> Blocks | None:
    """Return the decoder blocks of a Llama-like model, or None for another model.

    Args:
        model: Transformers causal language model.
        reads_beginnings: Whether shared prefixes are read once if the blocks are not compiled.
    """
    if {name for name, _ in model.named_children()} != {"model", "lm_head"}:
        return None
    body: Any = model.model
    if {name for name, _ in body.named_children()} != {"embed_tokens", "layers", "norm", "rotary_emb"}:
        return None
    if not (all(map(_is_block, body.layers)) and _is_norm(body.norm)):
        return None
    decoder = compiled_decoder(next(model.parameters()).dtype) if is_compilable(model) else None
    return Blocks(model, reads_beginnings, None if decoder is None else CompiledBlocks(model, decoder))


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
    """Return the sliding window of a layer in tokens, or None if it covers a whole slot.

    Mistral's sliding window is only in its config.
    """
    settings = {**vars(attention.config), **vars(attention)}
    window: int | None = settings.get("sliding_window")
    return None if window is None or window >= capacity else window


def _apply_norm(norm: Any, states: Tensor) -> Tensor:
    return rms_norm(states, (states.shape[-1],), norm.weight, norm.variance_epsilon)


def _apply_rotary(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding of [B, L, 1, D] angles to [B, L, heads, D]."""
    first, second = states.chunk(2, dim=-1)
    across = torch.cat((-second, first), dim=-1)
    if states.dtype == torch.float32:  # rounded between the two, as models do
        return states * cos + across * sin
    return torch.addcmul(states * cos, across, sin)
