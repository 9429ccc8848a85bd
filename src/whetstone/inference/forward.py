"""What does one forward pass over rows look like? New tokens of many rows in, logits out, bit for bit repeatable.

Easy to get wrong: a matrix product sums in another order when it has only a few rows, so a token's last bits
would depend on who else is there. Four rules prevent it (CPU, float32): every pass has at least sixteen tokens;
tokens of a prompt are computed in widths of a multiple of 4, drawn tokens one at a time; what is too few is
filled up with tokens nobody reads; activations see whole vectors of numbers (`activations.py`).

On a CPU models of Llama's kind are computed from their blocks (`blocks.py`): small ones in float32 to the bits of their
own pass; in others, rows that begin alike read that once (`beginnings.py`). In bfloat16, where nothing is promised to
the last bit, products are turned round (`products.py`).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from whetstone.inference.activations import even_activations
from whetstone.inference.attention import NAME, aim_attention
from whetstone.inference.blocks import Blocks, blocks_of
from whetstone.inference.cache import RowCache
from whetstone.inference.products import put_weights_first
from whetstone.inference.threads import GRAIN, ThreadChoice, restore_threads
from whetstone.policies import architecture_of, release_memory, takes, with_attention
from whetstone.policies.precision import SMALL

_FEWEST_TOKENS = 16
_WIDTH_GRAIN = 4
_AGREEMENT = {torch.bfloat16: 0.05, torch.float32: 1e-4}
"""Blocks may differ from the model's own pass by this share of its logits' size, in the root of the mean square.
SmolLM2 with 135 million parameters: 0.015 and 2e-6. Small models in float32 may not differ at all."""
_COMPARED_TOKENS, _SIBLINGS = 128, 4
_SAME_BITS: dict[Hashable, bool] = {}
"""By the modules and settings of a small model: whether its blocks have the bits of its own pass, whatever its weights.
Comparing takes 20 ms, which is dear where engines are made by the hundred."""


class RowForward:
    """A model, seen through rows of keys.

    Args:
        model: A Transformers causal language model; its parameters are shared, its mode and settings are not.
        rows: How many rows there are to be.
        context_length: Places the model knows.
    """

    def __init__(self, model: torch.nn.Module, *, rows: int, context_length: int) -> None:
        self.model = with_attention(model, attention=NAME)
        self.device = next(model.parameters()).device
        self.context_length = context_length
        config: Any = model.config
        config = config.get_text_config()
        self._layers = int(config.num_hidden_layers)
        self._groups = config.num_attention_heads // getattr(config, "num_key_value_heads", config.num_attention_heads)
        self._keeps_logits = takes(model, "logits_to_keep")
        self.cache = RowCache(self._layers, rows + 1, context_length)  # one more, for tokens that fill up
        self._dtype = next(model.parameters()).dtype
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._threads = ThreadChoice()
        self._blocks: Blocks | None = None
        if self.device.type == "cpu" and self._dtype in _AGREEMENT:
            even_activations(self.model)
            if self._dtype == torch.bfloat16:
                put_weights_first(self.model)
            large = self._parameters >= SMALL
            self._blocks = blocks_of(self.model, reads_beginnings=large or self._dtype == torch.bfloat16)
        self._is_compared = self._blocks is None

    def logits(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        new: Sequence[Sequence[int]],
        *,
        drawn: bool = False,
        prompts: Sequence[int] | None = None,
        everywhere: bool = False,
    ) -> Tensor:
        """Feed each row its new tokens.

        Args:
            rows: [B] ascending.
            starts: [B] how many tokens each holds already.
            new: [B] one token or more each.
            drawn: They are one each, and were drawn.
            prompts: [B] how many of each row's first tokens were computed as a prompt's, where they are drawn. None: 0.
            everywhere: Behind every new token, not only behind the last.

        Returns:
            [B, V] logits behind the last new token of each row; [B, width, V] where `everywhere`,
            rubbish behind a row's own tokens.
        """
        if not self._is_compared:
            self._is_compared = True  # here, in the thread that computes
            self._compare_once()
        width = 1 if drawn else -(-max(map(len, new)) // _WIDTH_GRAIN) * _WIDTH_GRAIN
        with self._threads_of_pass(self._parameters * len(rows) * width, tried=drawn):
            logits = self._computed(rows, starts, new, width=width, prompts=prompts, everywhere=everywhere)
        if logits.numel() >= GRAIN:
            restore_threads()  # the number of threads may decide the bits of what follows
        return logits

    def _threads_of_pass(self, multiplications: int, *, tried: bool) -> contextlib.AbstractContextManager[None]:
        """See `ThreadChoice.threads`. On a device no number of CPU threads is tried: a pass only launches kernels."""
        if self.device.type != "cpu":
            return contextlib.nullcontext()
        return self._threads.threads(multiplications, tried=tried)

    def _computed(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        new: Sequence[Sequence[int]],
        *,
        width: int,
        prompts: Sequence[int] | None,
        everywhere: bool,
    ) -> Tensor:
        """See `logits`; in passes of so many tokens a row."""
        repeatable = self._dtype == torch.float32 or self._blocks is None
        fill = max(0, -(-(_FEWEST_TOKENS - len(rows) * width) // width)) if repeatable else 0
        ids = torch.zeros(len(rows) + fill, width, dtype=torch.long)
        if width == 1:
            ids[: len(rows), 0] = torch.tensor([tokens[0] for tokens in new])
        else:
            for row, tokens in enumerate(new):
                ids[row, : len(tokens)] = torch.tensor(tokens)
        places = torch.tensor([*starts, *[0] * fill]).unsqueeze(1) + torch.arange(width)
        for row, start, tokens in zip(rows, starts, new, strict=True):
            self.cache.origins.written(row, start, start + len(tokens))
        lasts = [len(tokens) - 1 for tokens in new]
        kept = list(range(width)) if everywhere else sorted(set(lasts))
        known = places.clamp_max(self.context_length - 1).to(self.device)
        ids = ids.to(self.device)
        if self._blocks is not None:
            self.cache.aim(rows, places[: len(rows)], queries=width * self._groups, device=self.device)
            aim_attention(self.cache)
            settled = (prompts or [0] * len(rows)) if repeatable else None
            states = self._blocks.states(ids, known, self.cache, settled)
            if everywhere:
                return self._blocks.logits(states)[: len(rows)]
            wanted = states[torch.arange(len(rows)), torch.tensor(lasts)]
            fewest = _FEWEST_TOKENS if repeatable else 0
            return self._blocks.logits(pad(wanted, (0, 0, 0, max(0, fewest - len(rows)))))[: len(rows)]
        filled = [*rows, *[self.cache.count - 1] * fill]
        self.cache.aim(filled, places, queries=width * self._groups, device=self.device)
        aim_attention(self.cache)
        # the head, too, must see sixteen tokens
        padded = kept * max(1, -(-_FEWEST_TOKENS // (len(ids) * len(kept))))
        options = {"logits_to_keep": torch.tensor(padded, device=self.device)} if self._keeps_logits else {}
        output: Any = self.model(
            input_ids=ids,
            # models make a mask where they are given none; one of four dimensions they leave alone
            attention_mask=ids.new_ones(1, 1, 1, 1, dtype=torch.bool),
            position_ids=known,
            past_key_values=self.cache,
            use_cache=True,
            **options,
        )
        logits: Tensor = output.logits[: len(rows)]
        if not self._keeps_logits:
            kept = list(range(width))
        if everywhere:
            return logits[:, :width]
        at = torch.tensor([kept.index(last) for last in lasts], device=self.device)
        return logits[torch.arange(len(rows), device=self.device), at]

    @contextlib.contextmanager
    def tried(self, *, rows: int, length: int) -> Iterator[None]:
        """As long as the block lasts, the model's own pass over other rows, which are gone afterwards."""
        before = self.cache, self._blocks, self._is_compared
        self.cache, self._blocks, self._is_compared = RowCache(self._layers, rows + 1, length), None, True
        try:
            yield
        finally:
            self.cache, self._blocks, self._is_compared = before

    def _compare_once(self) -> None:
        """Leave the blocks aside where they are not what the model computes."""
        if self._blocks is None or self._blocks.reads_beginnings:
            self._compare()
            return
        kind = architecture_of(self.model)
        if kind not in _SAME_BITS:
            self._compare()
            _SAME_BITS[kind] = self._blocks is not None
        elif not _SAME_BITS[kind]:
            self._blocks = None

    def _compare(self) -> None:
        """Leave the blocks aside where they are not what the model computes, for a prompt and one more token."""
        blocks = self._blocks
        length = max(1, min(_COMPARED_TOKENS, self.context_length - 1))
        vocabulary = int(self.model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        numbers = torch.Generator().manual_seed(0)
        ids = torch.randint(vocabulary, (length + _SIBLINGS,), generator=numbers).tolist()
        found: list[Tensor] = []
        for way in (None, blocks):
            with self.tried(rows=_SIBLINGS, length=length + 1):
                self._blocks = way
                prompt = self.logits([0], [0], [ids[:length]])
                for sibling in range(1, _SIBLINGS):
                    self.cache.copy(0, sibling, length)
                new = [[token] for token in ids[length:]]
                lengths = [length] * _SIBLINGS
                drawn = self.logits(range(_SIBLINGS), lengths, new, drawn=True, prompts=lengths)
            found.append(torch.cat([prompt, drawn]).float())
        own, of_blocks = found
        apart = float((of_blocks - own).norm() / own.norm())
        quicker = blocks is not None and blocks.reads_beginnings
        if not apart <= (_AGREEMENT[self._dtype] if quicker else 0.0):
            self._blocks = None
        if self._blocks is None and quicker:
            warnings.warn(
                f"the model's logits are not those of its blocks (apart by {apart:.2g} of their size); "
                "it is sampled by its own, slower forward pass",
                stacklevel=2,
            )

    def let_go(self) -> None:
        """Give the memory of the rows back; the next pass takes it anew, and finds them empty."""
        self.cache.let_go()
        release_memory(self.device)

    def load(self, weights: Any) -> None:
        """Take over parameters by name."""
        take_over(self.model, weights)


def take_over(model: torch.nn.Module, weights: Any) -> None:
    """Give a model parameters by name; those that are the same memory already are not copied."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            given = weights[name]
            if given.device != parameter.device or given.data_ptr() != parameter.data_ptr():
                parameter.copy_(given)
