"""How is a model sampled that keeps something else than keys and values? Each sequence with the model's own cache.

State-space models, linear attention and convolutions carry a state from token to token. It stands for all tokens so
far, so it can be gone on with and nothing else: not cut, not shared with a sequence that begins alike. What a model
keeps is what its own forward pass returns, so nothing here knows any kind by name.

Easy to get wrong: some models go on from what they kept with one token only, and some do not go on from it at all.
Which of these it is, is tried (`feeding_of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from whetstone.errors import PolicyError
from whetstone.inference.forward import take_over
from whetstone.policies import FAULTS, PlainPass, kind_of, release_memory, takes, with_attention


@dataclass(frozen=True, slots=True)
class Feeding:
    """How a sequence goes on."""

    by: Literal["pieces", "single", "whole"]
    """With any number of tokens at once, with one at a time, or computed again from its start."""
    places: bool = False
    """Whether the model is told where they stand; some do not count what they have kept."""


_FEEDINGS = (
    Feeding("pieces", True), Feeding("pieces"), Feeding("single", True), Feeding("single"), Feeding("whole")
)  # fmt: skip
"""From quick to slow."""
_KEPT = ("past_key_values", "cache_params", "state", "mems", "past_buckets_states")
"""What models call what they keep, in what they return and in what they take."""


@dataclass(slots=True)
class _Sequence:
    ids: list[int] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)


class OwnCaches:
    """What the model keeps of each sequence."""

    def __init__(self) -> None:
        self.sequences: dict[int, _Sequence] = {}

    def wipe(self, row: int) -> None:
        """Nothing is left of what was in it."""
        self.sequences.pop(row, None)


class OwnForward:
    """A model, seen through its own cache: `RowForward` for models that rows do not suit, one sequence at a time.

    Args:
        model: A Transformers causal language model; its parameters are shared, its mode and settings are not.
        feeding: How sequences go on.
    """

    def __init__(self, model: torch.nn.Module, *, feeding: Feeding) -> None:
        anything: Any = model
        self.model: Any = with_attention(model, attention=anything.config._attn_implementation)
        self.device = next(model.parameters()).device
        self.feeding = feeding
        self.cache = OwnCaches()
        self._options: dict[str, Any] = {"use_cache": feeding.by != "whole"} if takes(model, "use_cache") else {}
        self._keeps_logits = takes(model, "logits_to_keep")

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
        """Feed each row its new tokens, behind all it holds or from its start; see `RowForward.logits`."""
        found = []
        for row, start, tokens in zip(rows, starts, new, strict=True):
            if start == 0:
                self.cache.wipe(row)
            sequence = self.cache.sequences.setdefault(row, _Sequence())
            assert len(sequence.ids) == start  # nothing is cut: see `Rows`
            pieces = [self._fed(sequence, piece, everywhere) for piece in self._pieces(start, tokens)]
            logits = torch.cat(pieces) if everywhere else pieces[-1]
            found.append(logits)
        if not everywhere:
            return torch.cat(found)
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)

    def let_go(self) -> None:
        """Give the memory of all sequences back."""
        self.cache.sequences.clear()
        release_memory(self.device)

    def load(self, weights: Any) -> None:
        """Take over parameters by name."""
        take_over(self.model, weights)

    def _pieces(self, start: int, tokens: Sequence[int]) -> Iterator[Sequence[int]]:
        if self.feeding.by == "single" and start > 0:
            yield from ([token] for token in tokens)
        else:
            yield tokens

    def _fed(self, sequence: _Sequence, tokens: Sequence[int], everywhere: bool) -> Tensor:
        """[1 or len(tokens), V] behind the last of these tokens or behind each."""
        whole = self.feeding.by == "whole"
        fed = torch.tensor([[*sequence.ids, *tokens] if whole else tokens], device=self.device)
        options = self._options | ({"logits_to_keep": len(tokens) if everywhere else 1} if self._keeps_logits else {})
        if self.feeding.places:
            start = len(sequence.ids)
            options["position_ids"] = torch.arange(start, start + len(tokens), device=self.device).unsqueeze(0)
        output = self.model(input_ids=fed, **options, **sequence.kept)
        if not whole:
            sequence.kept = {name: output[name] for name in _KEPT if name in output and output[name] is not None}
        sequence.ids += tokens
        logits: Tensor = output.logits[0, -len(tokens) if everywhere else -1 :]
        return logits


@torch.no_grad()
def feeding_of(model: torch.nn.Module, plain: PlainPass) -> Feeding:
    """The quickest way to go on that gives what the model's plain pass gives.

    Raises:
        PolicyError: None does; the plain pass itself gives other numbers each time.
    """
    for feeding in _FEEDINGS:
        if feeding.places and not takes(model, "position_ids"):
            continue
        try:
            if _apart(OwnForward(model, feeding=feeding), plain) <= 1:
                return feeding
        except FAULTS:
            continue
    raise PolicyError(f"models of type {kind_of(model)} give other numbers each time they are computed")


def _apart(forward: OwnForward, plain: PlainPass) -> float:
    """How far it is from the plain pass; two sequences take turns, one of which begins with a single token."""
    first, second = plain.sequences
    stem, length = plain.stem, len(first)
    worst = 0.0
    for row, start, end in ((0, 0, stem), (1, 0, 1), (0, stem, stem + 3), (1, 1, stem), (1, stem, length - 2)):
        logits = forward.logits([row], [start], [plain.sequences[row][start:end]], everywhere=True)[0]
        worst = max(worst, plain.apart(row, start, logits))
    ends = [stem + 3, length - 2]
    for step in range(2):
        at = [end + step for end in ends]
        logits = forward.logits([0, 1], at, [[first[at[0]]], [second[at[1]]]], drawn=True)
        worst = max(worst, *(plain.apart(row, at[row], logits[row : row + 1]) for row in (0, 1)))
    return worst
