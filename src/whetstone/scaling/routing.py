"""Which replica is asked next? The one that has least to do for it: tokens of the prompt it lacks, and who waits there.

    cost = tokens of the prompt whose keys it lacks
         + REQUEST_TOKENS × the larger of: requests in it; episodes that stay with it, above the fewest of any

Siblings of a group begin alike, and turns of an episode go on from one another; a replica that has those keys computes
them no more. Where its queue is longer than that is worth, another is asked. Episodes that wait for a tool count as
well: without them, who begins with a long prompt that all share would never leave the first replica that has it.

Easy to get wrong: what a replica has is only guessed here, from what was sent to it lately. A wrong guess costs a
prompt's computing and nothing else, for a draw depends on its seed and its place alone.

Source: AgentMath, arXiv:2512.20745 (balancing by prefixes); the weight is ours.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

BLOCK = 32
"""Beginnings are told apart by so many tokens at a time."""
REQUEST_TOKENS = 64
"""Tokens of a prompt that take as long to compute as one more request makes a replica slower: a row of a decode step
costs about two tokens of a prompt, over the steps of a turn, some 38 (`benchmarks/simulated.py`)."""
REMEMBERED = 16384
"""Blocks, of what was sent to a replica lately."""


class Sent:
    """What beginnings a replica was sent lately."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def matched(self, chain: Sequence[int]) -> int:
        """Tokens of a prompt that it has, as whole blocks.

        Args:
            chain: See `chain_of`.
        """
        count = 0
        for block in chain:
            if block not in self._blocks:
                break
            count += 1
        return count * BLOCK

    def note(self, chain: Sequence[int]) -> None:
        """It was sent this prompt."""
        for block in chain:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > REMEMBERED:
            self._blocks.popitem(last=False)

    def forget(self) -> None:
        """It began again: it has nothing."""
        self._blocks.clear()


def chain_of(keys: Sequence[int]) -> list[int]:
    """Return a chained hash per whole block of a prompt: of the block and all before it.

    Args:
        keys: See `TokenSequence.keys`.
    """

    def blocks() -> Iterator[int]:
        before = 0
        for start in range(0, len(keys) - BLOCK + 1, BLOCK):
            before = hash((before, *keys[start : start + BLOCK]))
            yield before

    return list(blocks())


def cost(prompt: int, matched: int, *, asked: int, more: int) -> int:
    """Of asking a replica, in tokens of a prompt.

    Args:
        prompt: Its tokens.
        matched: Those the replica has.
        asked: Requests in it.
        more: Episodes that stay with it, above the fewest of any.
    """
    return prompt - matched + REQUEST_TOKENS * max(asked, more)
