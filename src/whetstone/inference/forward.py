"""Batched forward pass over KV slots: new tokens of many sequences in, logits out, bit for bit repeatable.

Note:
    A matrix product with few rows sums in another order, so the last bits of a token would depend on the other
    sequences. Four rules prevent this on a CPU in float32. Every forward pass has at least sixteen tokens. Prompt
    tokens are computed in widths of a multiple of 4, sampled tokens one at a time. Smaller inputs are padded.
    Activations see whole vectors (`deterministic_activations.py`).

On a CPU, Llama-like models are computed by one compiled function if the machine and the model allow it
(`compiled_blocks.py`): it sums each token separately and needs none of the four rules. Otherwise they are computed from
their blocks (`llama_forward.py`): small ones in float32 with the bits of the model's forward pass; in the others, slots
with a shared prefix read it once (`cascade_attention.py`). In bfloat16, which is not bit-exact, matrix products are
transposed (`matmul.py`).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from whetstone.inference.attention import NAME, set_attention_context
from whetstone.inference.compiled_blocks import CompiledBlocks
from whetstone.inference.compiled_decoder import missing_for
from whetstone.inference.deterministic_activations import make_activations_deterministic
from whetstone.inference.kv_cache import KVCache
from whetstone.inference.llama_forward import Blocks, find_blocks
from whetstone.inference.matmul import transpose_linears
from whetstone.inference.thread_tuning import GRAIN, ThreadChoice, restore_threads
from whetstone.policies import architecture_key, forward_accepts, release_memory, with_attention
from whetstone.policies.precision import SMALL

_FEWEST_TOKENS = 16
_WIDTH_GRAIN = 4
_AGREEMENT = {torch.bfloat16: 0.05, torch.float32: 1e-4}
"""Maximum relative difference (root mean square) between logits of the blocks and of the model's forward pass, by data
type. SmolLM2 with 135 million parameters: 0.015 in bfloat16 and 2e-6 in float32. Small models in float32 may not differ
at all, except if the blocks are compiled."""
_COMPARED_TOKENS, _SIBLINGS = 128, 4
_AGREEING: dict[Hashable, tuple[bool, bool]] = {}
"""Whether the blocks of a small model in float32 can be used, and whether compiled, by its modules and settings;
independent of its weights. The comparison takes 20 ms, which is slow if hundreds of engines are created."""


class SlotForward:
    """Forward pass of a model over KV slots, created by `choose_forward` for `LocalEngine`.

    The fast blocks of `llama_forward.py` are used if the model has them and their logits agree with the model's.

    Args:
        model: Transformers causal language model. Its parameters are shared; its mode and attention settings are those
            of a copy.
        rows: Number of KV slots.
        context_length: Maximum number of tokens per slot.
    """

    def __init__(self, model: torch.nn.Module, *, rows: int, context_length: int) -> None:
        self.model = with_attention(model, attention=NAME)
        self.device = next(model.parameters()).device
        self.context_length = context_length
        config: Any = model.config
        config = config.get_text_config()
        self._layers = int(config.num_hidden_layers)
        self._groups = config.num_attention_heads // getattr(config, "num_key_value_heads", config.num_attention_heads)
        self._keeps_logits = forward_accepts(model, "logits_to_keep")
        self.cache = KVCache(self._layers, rows + 1, context_length)  # one more, for tokens that fill up
        self._dtype = next(model.parameters()).dtype
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._threads = ThreadChoice()
        self._blocks: Blocks | None = None
        if self.device.type == "cpu" and self._dtype in _AGREEMENT:
            make_activations_deterministic(self.model)
            if self._dtype == torch.bfloat16:
                transpose_linears(self.model)
            large = self._parameters >= SMALL
            self._blocks = find_blocks(self.model, reads_beginnings=large or self._dtype == torch.bfloat16)
        self._is_compared = self._blocks is None

    def compute_logits(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        new: Sequence[Sequence[int]],
        *,
        is_decode: bool = False,
        prompts: Sequence[int] | None = None,
        everywhere: bool = False,
    ) -> Tensor:
        """Feed new tokens to KV slots and compute the logits that follow them.

        Args:
            rows: [B] slots, ascending.
            starts: [B] number of tokens that each slot already contains.
            new: [B] new token ids of each slot, at least one each.
            is_decode: Whether each slot has exactly one new token, which was sampled.
            prompts: [B] number of leading tokens of each slot that were computed as a prompt, if `is_decode`; None: 0.
            everywhere: Whether to return logits after every new token instead of only after the last.

        Returns:
            [B, V] logits after the last new token of each slot; if `everywhere`, [B, width, V], with undefined values
            after a slot's last new token.
        """
        if not self._is_compared:
            self._is_compared = True  # in the thread that computes
            self._compare_once()
        width = 1 if is_decode else -(-max(map(len, new)) // _WIDTH_GRAIN) * _WIDTH_GRAIN
        with self._threads_of_pass(self._parameters * len(rows) * width, tried=is_decode):
            logits = self._computed(rows, starts, new, width=width, prompts=prompts, everywhere=everywhere)
        if logits.numel() >= GRAIN:
            restore_threads()  # the number of threads may decide the bits of what follows
        return logits

    def _threads_of_pass(self, multiplications: int, *, tried: bool) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that sets the number of threads of a forward pass.

        See `ThreadChoice.limit_threads`. On a GPU the number of threads stays as it is: a forward pass only launches
        kernels.
        """
        if self.device.type != "cpu":
            return contextlib.nullcontext()
        return self._threads.limit_threads(multiplications, tried=tried)

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
        """Compute the logits of `compute_logits` for inputs padded to `width` tokens per slot."""
        if self._blocks is not None and self._blocks.compiled is not None:
            return self._compiled(self._blocks.compiled, rows, starts, new, everywhere=everywhere)
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
            self.cache.origins.record_write(row, start, start + len(tokens))
        lasts = [len(tokens) - 1 for tokens in new]
        logit_positions = list(range(width)) if everywhere else sorted(set(lasts))
        known = places.clamp_max(self.context_length - 1).to(self.device)
        ids = ids.to(self.device)
        if self._blocks is not None:
            self.cache.select_slots(rows, places[: len(rows)], queries=width * self._groups, device=self.device)
            set_attention_context(self.cache)
            settled = (prompts or [0] * len(rows)) if repeatable else None
            states = self._blocks.compute_states(ids, known, self.cache, settled)
            if everywhere:
                return self._blocks.compute_logits(states)[: len(rows)]
            wanted = states[torch.arange(len(rows)), torch.tensor(lasts)]
            fewest = _FEWEST_TOKENS if repeatable else 0
            return self._blocks.compute_logits(pad(wanted, (0, 0, 0, max(0, fewest - len(rows)))))[: len(rows)]
        filled = [*rows, *[self.cache.count - 1] * fill]
        self.cache.select_slots(filled, places, queries=width * self._groups, device=self.device)
        set_attention_context(self.cache)
        # the head, too, must see sixteen tokens
        padded = logit_positions * max(1, -(-_FEWEST_TOKENS // (len(ids) * len(logit_positions))))
        options = {"logits_to_keep": torch.tensor(padded, device=self.device)} if self._keeps_logits else {}
        output: Any = self.model(
            input_ids=ids,
            # models create a mask if they receive none; a mask of four dimensions is not modified
            attention_mask=ids.new_ones(1, 1, 1, 1, dtype=torch.bool),
            position_ids=known,
            past_key_values=self.cache,
            use_cache=True,
            **options,
        )
        logits: Tensor = output.logits[: len(rows)]
        if not self._keeps_logits:
            logit_positions = list(range(width))
        if everywhere:
            return logits[:, :width]
        at = torch.tensor([logit_positions.index(last) for last in lasts], device=self.device)
        return logits[torch.arange(len(rows), device=self.device), at]

    def _compiled(
        self,
        blocks: CompiledBlocks,
        rows: Sequence[int],
        starts: Sequence[int],
        new: Sequence[Sequence[int]],
        *,
        everywhere: bool,
    ) -> Tensor:
        """Compute the logits of `compute_logits` by compiled blocks, with all tokens in one list."""
        lengths = torch.tensor([len(tokens) for tokens in new])
        for row, start, tokens in zip(rows, starts, new, strict=True):
            self.cache.origins.record_write(row, start, start + len(tokens))
        ends = lengths.cumsum(0)
        index = torch.arange(len(rows)).repeat_interleave(lengths)
        offsets = torch.arange(len(index)) - (ends - lengths)[index]
        places = torch.tensor(starts)[index] + offsets
        ids = torch.tensor([token for tokens in new for token in tokens])
        is_decode = len(ids) == len(rows)
        states = blocks.compute_states(ids, torch.tensor(rows)[index], places, self.cache, is_decode=is_decode)
        if not everywhere:
            return blocks.compute_logits(states[ends - 1])
        padded = states.new_zeros(len(rows), int(lengths.max()), states.shape[1])
        padded[index, offsets] = states
        return blocks.compute_logits(padded.flatten(0, 1)).view(*padded.shape[:2], -1)

    @contextlib.contextmanager
    def temporary_slots(self, *, rows: int, length: int) -> Iterator[None]:
        """Use the model's own forward pass over temporary slots within the `with` block.

        Used to compare forward passes. KV slots and blocks are restored when the block ends.

        Args:
            rows: Number of temporary slots.
            length: Maximum number of tokens per slot.
        """
        before = self.cache, self._blocks, self._is_compared
        self.cache, self._blocks, self._is_compared = KVCache(self._layers, rows + 1, length), None, True
        try:
            yield
        finally:
            self.cache, self._blocks, self._is_compared = before

    def _compare_once(self) -> None:
        """Compare the fast blocks with the model once, and disable the blocks if they differ.

        Called before the first forward pass. The result for small models in float32 is cached per architecture.
        """
        blocks = self._blocks
        if blocks is None or blocks.reads_beginnings:
            self._compare()
            return
        kind = architecture_key(self.model), blocks.compiled is not None
        if kind not in _AGREEING:
            self._compare()
            if self._blocks is None and blocks.compiled is not None:
                self._blocks = replace(blocks, compiled=None)
                self._compare()
            _AGREEING[kind] = self._blocks is not None, self._blocks is not None and self._blocks.compiled is not None
        is_used, is_compiled = _AGREEING[kind]
        self._blocks = replace(blocks, compiled=blocks.compiled if is_compiled else None) if is_used else None

    def _compare(self) -> None:
        """Compare logits of the fast blocks and of the model, and disable the blocks if they differ.

        A prompt of at most 128 tokens and one more token in each of four slots are compared. A warning reports blocks
        of a large model or of bfloat16 that are disabled.
        """
        blocks = self._blocks
        length = max(1, min(_COMPARED_TOKENS, self.context_length - 1))
        vocabulary = int(self.model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        numbers = torch.Generator().manual_seed(0)
        ids = torch.randint(vocabulary, (length + _SIBLINGS,), generator=numbers).tolist()
        outputs: list[Tensor] = []
        for way in (None, blocks):
            with self.temporary_slots(rows=_SIBLINGS, length=length + 1):
                self._blocks = way
                prompt = self.compute_logits([0], [0], [ids[:length]])
                for sibling in range(1, _SIBLINGS):
                    self.cache.copy(0, sibling, length)
                new = [[token] for token in ids[length:]]
                lengths = [length] * _SIBLINGS
                drawn = self.compute_logits(range(_SIBLINGS), lengths, new, is_decode=True, prompts=lengths)
            outputs.append(torch.cat([prompt, drawn]).float())
        own, of_blocks = outputs
        difference = float((of_blocks - own).norm() / own.norm())
        quicker = blocks is not None and blocks.reads_beginnings
        is_exact = blocks is not None and not quicker and blocks.compiled is None
        if not difference <= (0.0 if is_exact else _AGREEMENT[self._dtype]):
            self._blocks = None
        if self._blocks is None and quicker:
            warnings.warn(
                f"the logits of the fast forward pass differ from the model's (relative error {difference:.2g}); "
                "the model is sampled by its own, slower forward pass",
                stacklevel=2,
            )

    def describe(self) -> tuple[bool, str]:
        """Return (whether the fast blocks compute this model on a CPU, what computes it and why not faster).

        The first value is True on other devices: the model's own blocks are fast there.
        """
        if self.device.type != "cpu":
            return True, "by the model's own blocks over KV slots"
        if not self._is_compared:
            self._is_compared = True
            self._compare_once()
        if self._blocks is None:
            return False, "by the model's own blocks, slower: they are not Llama-like, or their logits differ"
        if self._blocks.compiled is not None:
            return True, "by compiled functions"
        reason = missing_for(self._dtype) or "its blocks have a part that they do not compute"
        return True, f"by PyTorch's operations, slower than by compiled functions: {reason}"

    def release(self) -> None:
        """Free the memory of the KV cache; the next forward pass allocates it again, empty."""
        self.cache.release()
        release_memory(self.device)

    def load(self, weights: Any) -> None:
        """Copy parameters into the model by name; see `assign_parameters`."""
        assign_parameters(self.model, weights)


def assign_parameters(model: torch.nn.Module, weights: Any) -> None:
    """Copy parameters into a model by name.

    Parameters that already share memory with the model's are not copied.

    Args:
        model: Model that receives the parameters.
        weights: Tensor of every named parameter of the model.

    Raises:
        KeyError: If a parameter of the model is missing from `weights`.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            new = weights[name]
            if new.device != parameter.device or new.data_ptr() != parameter.data_ptr():
                parameter.copy_(new)
