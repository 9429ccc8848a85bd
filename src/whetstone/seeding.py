"""Random seeds that are derived from the position of a random choice in the run.

Note:
    Python's `hash` differs between processes, and with a shared generator one episode depends on another. A derived
    seed depends only on its parts.
"""

from __future__ import annotations

import hashlib
import random


def derive_seed(*parts: int | str) -> int:
    """Derive a 63-bit seed from a sequence of labels and numbers.

    The same parts in the same order give the same seed in every process, on every machine.

    Args:
        parts: For example the seed of the run, a label such as `"environment"`, and the number of the episode.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def derive_random(*parts: int | str) -> random.Random:
    """Return a new random generator, seeded by `derive_seed(*parts)`."""
    return random.Random(derive_seed(*parts))
