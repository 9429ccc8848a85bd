"""Where does a random choice come from? From a seed derived from its place in the run, and nowhere else.

Easy to get wrong: Python's `hash` changes from process to process, and a shared generator makes one
episode's luck depend on another's. A derived seed depends on its parts alone.
"""

from __future__ import annotations

import hashlib
import random


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part and on their order.

    The same parts give the same seed in every process, on every machine.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def derive_random(*parts: int | str) -> random.Random:
    """A generator of its own, seeded by `derive_seed(*parts)`."""
    return random.Random(derive_seed(*parts))
