"""Cost of a request to a replica, for routing: prompt tokens without a cached prefix, and the replica's load.

    cost = tokens of the prompt that are not in its KV cache
         + REQUEST_TOKENS × the larger of: requests in it; episodes that stay with it, above the minimum of all replicas

Siblings of a group share a prefix, and each turn of an episode extends the previous one; a replica with that prefix in
its KV cache does not compute it again. If its queue costs more than this saves, another replica is chosen. Episodes
that wait for a tool count too. Otherwise all episodes with a long shared prompt would stay with the first replica that
has it.

Note:
    The content of a replica's KV cache is estimated from recent requests. A wrong estimate costs only the computation
    of a prompt, because a sample depends only on its seed and position.

Source: AgentMath, arXiv:2512.20745 (balancing by prefixes); the weight is Whetstone's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

BLOCK = 32
"""Number of tokens per block of a prefix."""
REQUEST_TOKENS = 64
"""Prompt tokens whose computation takes as long as one more request slows down a replica: one more sequence in a decode
step costs about two tokens of a prompt; over the steps of a turn, about 38 (`benchmarks/scale/simulated.py`)."""
MAX_BLOCKS = 16384
"""Maximum number of blocks stored per replica."""


class SentPrefixes:
    """Prefixes of prompts that were recently sent to a replica: an estimate of its KV cache."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def count_matched_tokens(self, chain: Sequence[int]) -> int:
        """Return the number of leading prompt tokens that the replica has probably cached, in whole blocks.

        Args:
            chain: Hashes of the prompt's prefixes; see `hash_prefixes`.
        """
        count = 0
        for block in chain:
            if block not in self._blocks:
                break
            count += 1
        return count * BLOCK

    def note(self, chain: Sequence[int]) -> None:
        """Record a prompt that was sent to the replica, by its prefix hashes."""
        for block in chain:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > MAX_BLOCKS:
            self._blocks.popitem(last=False)

    def forget(self) -> None:
        """Discard all prefixes, because the replica restarted and lost its KV cache."""
        self._blocks.clear()


def hash_prefixes(keys: Sequence[int]) -> list[int]:
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


def routing_cost(prompt: int, matched: int, *, num_requests: int, more: int) -> int:
    """Return the cost of a request to a replica, in tokens of a prompt.

    Args:
        prompt: Number of prompt tokens.
        matched: Number of prompt tokens that the replica has.
        num_requests: Number of requests in it.
        more: Number of episodes that stay with it, above the minimum of all replicas.
    """
    return prompt - matched + REQUEST_TOKENS * max(num_requests, more)
