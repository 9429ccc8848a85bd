"""Random seeds that are derived from the position of a random choice in the run.

Note:
    Python's `hash` changes from process to process, and with a shared generator one episode depends on another. A
    derived seed depends only on its parts.
"""

from __future__ import annotations

import hashlib
import random


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on every part and on their order.

    The same parts give the same seed in every process, on every machine.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def derive_random(*parts: int | str) -> random.Random:
    """Return a new generator, seeded by `derive_seed(*parts)`."""
    return random.Random(derive_seed(*parts))
