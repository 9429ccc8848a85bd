"""How are blocks of Llama's kind computed in bfloat16 on a CPU? In columns, with compiled functions between products.

Products with the weights first give one token after the other for each number of a state ([C, T]), and need the same.
So states stay as they come out, and what lies between products (`compiled.py`) takes them like that.

A sequence's keys are read from its own row, but where it begins like another, as far as both go alike, from that one's:
those of a group are taken one after the other, so what they share is read from memory once.

Source: Juravsky et al. 2024, arXiv:2402.05099, section 3 (Hydragen).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.activations import SiLUActivation

from whetstone.inference.cache import RowCache
from whetstone.inference.compiled import WIDTHS, Compiled
from whetstone.inference.products import WeightsFirst

_ALONE = 2**20
"""Numbers that one thread is through with before it pays to wake another."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The blocks of a causal language model in bfloat16.

    Args:
        model: The model, whose modules are these blocks': see `suits`.
        functions: What lies between products.
    """

    model: Any
    functions: Compiled

    def states(self, ids: Tensor, places: Tensor, cache: RowCache) -> Tensor:
        """Feed tokens to the rows the cache is aimed at; see `Blocks.states`.

        Args:
            ids: [N, L], N as many as the cache is aimed at.
            places: [N, L]

        Returns:
            [N, L, hidden] normed.
        """
        body = self.model.model
        embedded = body.embed_tokens(ids)
        hidden = _columns(embedded)
        cos, sin = (_columns(each) for each in body.rotary_emb(embedded, places))
        threads = torch.get_num_threads()
        step = _Pass(self.functions, cache, (cos, sin), _seen(cache), ids.shape, threads)
        added = None
        for number, layer in enumerate(body.layers):
            added = step.attended(layer.self_attn, number, step.normed(layer.input_layernorm, hidden, added))
            added = step.transformed(layer.mlp, step.normed(layer.post_attention_layernorm, hidden, added))
        return step.rows(step.normed(body.norm, hidden, added))


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """What all layers of one pass have in common."""

    functions: Compiled
    cache: RowCache
    angles: tuple[Tensor, Tensor]
    """[D, T] cosines and sines."""
    seen: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    """What each token reads: see `Compiled.attend`."""
    shape: torch.Size
    """(N, L), T of them."""
    threads: int
    places: dict[str, Tensor] = field(default_factory=dict)
    """Where heads are written: the same in all layers."""

    def normed(self, norm: Any, hidden: Tensor, added: Tensor | None) -> Tensor:
        return self.functions.add_and_norm(hidden, added, norm.weight, norm.variance_epsilon, self._helpers(hidden))

    def rows(self, columns: Tensor) -> Tensor:
        """[C, T] → [N, L, C], not moved."""
        return columns.t().view(*self.shape, -1)

    def attended(self, attention: Any, number: int, normed: Tensor) -> Tensor:
        """[hidden, T] what a layer's attention adds."""
        query, key, value = (
            self._product(module, normed) for module in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        width, tokens = attention.head_dim, normed.shape[1]
        heads, kept = len(query) // width, len(key) // width
        layer: Any = self.cache.layers[number]
        if not layer.is_initialized:
            layer.lazy_initialization(*[normed.new_empty(1, kept, 1, width)] * 2)
        helpers = self._helpers(query)
        slots = self._slots(kept)
        self.functions.turn(key, self.angles, layer.keys, slots, helpers)
        self.functions.turn(value, None, layer.values, slots, helpers)
        queries = normed.new_empty(tokens, heads, width)
        self.functions.turn(query, self.angles, queries, self._in_order(tokens * heads), helpers)
        scale = attention.scaling
        mixed = self.functions.attend(queries, layer.keys, layer.values, self.seen, scale, self.threads)
        return self._product(attention.o_proj, mixed.view(tokens, -1).t())

    def transformed(self, mlp: Any, normed: Tensor) -> Tensor:
        """[hidden, T] what a layer's network of one token adds."""
        gate, up = self._product(mlp.gate_proj, normed), self._product(mlp.up_proj, normed)
        return self._product(mlp.down_proj, self.functions.gate(gate, up, self._helpers(gate)))

    def _slots(self, kept: int) -> Tensor:
        """[T · kept] where in a layer's rows the heads of each token go."""
        name = f"{kept} kept"
        if name not in self.places:  # the cache tells of rows, heads and tokens; here a token's heads come together
            slots = self.cache.slots(kept).view(-1, kept, self.shape[1])
            self.places[name] = slots.transpose(1, 2).contiguous()
        return self.places[name]

    def _in_order(self, heads: int) -> Tensor:
        """[heads] one behind the other."""
        name = f"{heads} in order"
        if name not in self.places:
            self.places[name] = torch.arange(heads)
        return self.places[name]

    def _product(self, module: Any, columns: Tensor) -> Tensor:
        """[C, T] → [C', T] in one piece, by any layer that is linear."""
        if type(module) is WeightsFirst:
            product = module.weight @ columns
            return product if module.bias is None else product + module.bias.unsqueeze(1)
        return _columns(module(self.rows(columns)))

    def _helpers(self, columns: Tensor) -> int:
        return self.threads if columns.numel() >= _ALONE else 1


def suits(model: Any) -> bool:
    """Whether a model that has `Blocks` has the formulas of these as well."""
    in_half = all(weights.dtype == torch.bfloat16 for weights in model.parameters())
    return in_half and all(map(_suits, model.model.layers))


def _suits(layer: Any) -> bool:
    attention, held = layer.self_attn, {**vars(layer.self_attn.config), **vars(layer.self_attn)}
    return (
        attention.head_dim in WIDTHS
        and held.get("sliding_window") is None
        and not {"q_norm", "k_norm"} & {name for name, _ in attention.named_children()}
        and isinstance(layer.mlp.act_fn, torch.nn.SiLU | SiLUActivation)
    )


def _columns(rows: Tensor) -> Tensor:
    """[…, C] → [C, T], in one piece."""
    return rows.reshape(-1, rows.shape[-1]).t().contiguous()


def _seen(cache: RowCache) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What each token of a pass reads: see `Compiled.attend`."""
    if cache.places.shape[1] > 1:  # those of a row read the same anyway
        rows, lengths = cache.chosen.repeat_interleave(cache.places.shape[1]), cache.places.flatten() + 1
        return rows, rows, torch.zeros_like(rows), lengths, torch.arange(len(rows))
    rows, lengths = cache.chosen, cache.places[:, 0]
    order: list[int] = []
    sources, shared = rows.tolist(), [0] * len(rows)
    numbers, known = list(sources), lengths.tolist()
    for one in cache.origins.shared(numbers, [max(1, length) for length in known]):
        order += one.members
        for member in one.members:
            sources[member], shared[member] = numbers[one.members[0]], min(one.length, known[member])
    return rows, torch.tensor(sources), torch.tensor(shared), lengths + 1, torch.tensor(order)
