"""How does a policy get out of a dead end? Behind a wrong answer a sentence of doubt is put in its mouth.

    a wrong answer → with some chance a second path: the answer cut off, a sentence spliced in, the policy goes on

Easy to get wrong: the sentence was not drawn from the policy. It is trained, with a ratio to how likely it was to be
spliced, or not at all.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Roller, Splice
from whetstone.trajectory import Author, EndReason, Group, Task, Tokens, Trajectory

_SENTENCES = (
    "Wait, that may be wrong. Let me check with the tool.",
    "This does not look right. Let me do it again step by step.",
    "I am not sure of that. Let me look at it another way.",
)


def splice_logprobs(pool: Sequence[Sequence[int]], chosen: Sequence[int]) -> list[float]:
    """Log-prob of each token of a sentence drawn uniformly from a pool, given those in front of it.

    Among the sentences that begin alike, the share that goes on with this token.

    Source: REX-RAG 2025, arXiv:2508.08149, its code (`exploration_distribution.py`).
    """
    behind: Counter[tuple[int, ...]] = Counter()
    for sentence in pool:
        for length in range(len(sentence) + 1):
            behind[tuple(sentence[:length])] += 1
    found = []
    for place in range(len(chosen)):
        before = tuple(chosen[:place])
        going_on = behind[before] - sum(tuple(sentence) == before for sentence in pool)
        found.append(math.log(behind[tuple(chosen[: place + 1])] / going_on))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Independent episodes, and from those that answer wrongly, with some chance, a second path (REX-RAG).

    Source: REX-RAG 2025, arXiv:2508.08149, and its code.
    """

    group_size: int
    """Episodes from the start; probes come on top."""
    chance: float = 0.5
    """That a wrong answer is probed. 0 is independent sampling."""
    sentences: tuple[str, ...] = _SENTENCES
    """Of which one is spliced in."""

    def __post_init__(self) -> None:
        if not 0 <= self.chance <= 1:
            raise OptionError("chance", f"0 to 1, got {self.chance:g}")
        if not self.sentences:
            raise OptionError("sentences", "one or more are needed to splice")

    @property
    def provides(self) -> frozenset[str]:
        """What its groups carry."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        size = roller.samples(self.group_size)
        paths = await asyncio.gather(*(self._pair(task, roller, i, size) for i in range(size)))
        whole = [path for path, _ in paths]
        return Group(task, (*whole, *(probe for _, probe in paths if probe is not None)))

    async def _pair(self, task: Task, roller: Roller, index: int, size: int) -> tuple[Trajectory, Trajectory | None]:
        path = await roller.sample(task, index=index)
        draw = roller.random(index)
        wrong = path.ended is EndReason.TERMINATED and path.score is not None and not path.solved
        if not wrong or draw.random() >= self.chance:
            return path, None
        pool = [roller.written(sentence) for sentence in self.sentences]
        ids = draw.choice(pool)
        nothing = Tokens.written((), Author.INSERTED)
        logprobs = tuple(splice_logprobs(pool, ids))
        inserted = Tokens(ids, (Author.INSERTED,) * len(ids), logprobs, (-1,) * len(ids), (math.nan,) * len(ids))
        last = len(path.turns) - 1
        return path, await roller.fork(task, path, turns=last, index=size + index, splice=Splice(nothing, inserted))
