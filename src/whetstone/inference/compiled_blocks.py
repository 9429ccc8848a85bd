"""Forward pass of a Llama-like causal language model by `decoder.cpp`: see `compiled_decoder.py`.

Tokens are not padded: the tokens of all slots are one list. A sequence reads its keys from its own slot, except a
prefix that it shares with another sequence, which is read from that sequence's slot. The sequences of a group are
computed consecutively, so a shared prompt is read from memory once.

Source: Juravsky et al. 2024, arXiv:2402.05099, section 3 (Hydragen).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.activations import SiLUActivation

from whetstone.inference.compiled_decoder import CompiledDecoder, LayerWeights, Placement
from whetstone.inference.kv_cache import KVCache
from whetstone.inference.matmul import TransposedLinear

_WIDTH_GRAIN = 32
"""Number of which the width of an attention head must be a multiple."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledBlocks:
    """Decoder blocks of a model, computed by `decoder.cpp`; created by `find_blocks`.

    Args:
        model: Transformers model; its weights are read in place, so updates need no copy.
        decoder: Compiled functions for the data type of the model.
    """

    model: Any
    decoder: CompiledDecoder

    def compute_states(self, ids: Tensor, rows: Tensor, places: Tensor, cache: KVCache, *, is_decode: bool) -> Tensor:
        """Compute hidden states of new tokens, and write their keys and values to KV slots.

        Args:
            ids: [T] token ids of all sequences, sequence by sequence.
            rows: [T] slot of each token, ascending.
            places: [T] position of each token in its slot.
            cache: KV cache; `KVCache.select_slots` is not required.
            is_decode: Whether each sequence has exactly one new token; shared prefixes are then read from one slot.

        Returns:
            [T, hidden] states after the last norm, the input of the language-model head.
        """
        body = self.model.model
        states: Tensor = body.embed_tokens(ids).contiguous()
        cos, sin = (each[0].float().contiguous() for each in body.rotary_emb(states[None], places[None]))
        attention = body.layers[0].self_attn
        self.decoder.forward(
            states,
            [_weights(layer, cache.layers[number]) for number, layer in enumerate(body.layers)],
            body.norm.weight,
            (cos, sin),
            _placement(rows, places, cache, is_decode=is_decode),
            inner=body.layers[0].mlp.gate_proj.out_features,
            epsilon=body.norm.variance_epsilon,
            scale=attention.scaling,
            threads=torch.get_num_threads(),
        )
        return states

    def compute_logits(self, states: Tensor) -> Tensor:
        """Compute [T, V] float32 logits from [T, hidden] states."""
        return self.decoder.head(states, self.model.lm_head.weight, torch.get_num_threads())


def is_compilable(model: Any) -> bool:
    """Return whether `decoder.cpp` can compute a model.

    The model must have the modules of `Blocks`. Also required: one data type, one epsilon of all norms, contiguous
    weights, SiLU, MLP layers and head without bias, no sliding window, and head widths that are multiples of 32.
    """
    body = model.model
    dtypes = {weight.dtype for weight in model.parameters()}
    epsilons = {float(norm.variance_epsilon) for norm in _norms(body)}
    contiguous = all(weight.is_contiguous() for weight in model.parameters())
    head = type(model.lm_head) in (torch.nn.Linear, TransposedLinear) and model.lm_head.bias is None
    return len(dtypes) == len(epsilons) == 1 and contiguous and head and all(map(_is_compilable, body.layers))


def _norms(body: Any) -> Sequence[Any]:
    return [module for module in body.modules() if "variance_epsilon" in vars(module)]


def _is_compilable(layer: Any) -> bool:
    attention, settings = layer.self_attn, {**vars(layer.self_attn.config), **vars(layer.self_attn)}
    mlp = [layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj]
    linear = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, *mlp]
    return (
        attention.head_dim % _WIDTH_GRAIN == 0
        and settings.get("sliding_window") is None
        and isinstance(layer.mlp.act_fn, torch.nn.SiLU | SiLUActivation)
        and all(type(module) in (torch.nn.Linear, TransposedLinear) for module in linear)
        and all(module.bias is None for module in mlp)
        and all(module.in_features % 2 == 0 for module in linear)
    )


def _weights(layer: Any, rows: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    key = attention.k_proj.weight
    if not rows.is_initialized:
        rows.lazy_initialization(*[key.new_empty(1, len(key) // attention.head_dim, 1, attention.head_dim)] * 2)
    norms = dict(attention.named_children())
    return LayerWeights(
        layer.input_layernorm.weight,
        attention.q_proj.weight,
        key,
        attention.v_proj.weight,
        attention.o_proj.weight,
        layer.post_attention_layernorm.weight,
        mlp.gate_proj.weight,
        mlp.up_proj.weight,
        mlp.down_proj.weight,
        attention.q_proj.bias,
        attention.k_proj.bias,
        attention.v_proj.bias,
        attention.o_proj.bias,
        norms["q_norm"].weight if "q_norm" in norms else None,
        norms["k_norm"].weight if "k_norm" in norms else None,
        rows.keys,
        rows.values,
    )


def _placement(rows: Tensor, places: Tensor, cache: KVCache, *, is_decode: bool) -> Placement:
    if not is_decode:  # the tokens of a row are neighbors
        return Placement(rows, places, rows, torch.zeros_like(rows), torch.arange(len(rows)))
    numbers, known = rows.tolist(), places.tolist()
    order: list[int] = []
    sources, shared = list(numbers), [0] * len(numbers)
    for one in cache.origins.group_by_prefix(numbers, [max(1, place) for place in known]):
        order += one.members
        for member in one.members:
            sources[member], shared[member] = numbers[one.members[0]], min(one.length, known[member])
    return Placement(rows, places, torch.tensor(sources), torch.tensor(shared), torch.tensor(order))
