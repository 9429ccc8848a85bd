"""Strategy that continues wrong answers with an inserted sentence of doubt (REX-RAG).

    wrong answer → with a probability a second path: answer removed, sentence spliced in, the policy continues

Note:
    The sentence was not sampled from the policy. It is trained with a ratio to its splice probability, or not at all.
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
    """Compute the log-prob of each token of a sentence that is sampled uniformly from a pool, given its preceding
    tokens.

    It is the log of the fraction of sentences with the same prefix that continue with this token.

    Args:
        pool: Tokens of all sentences.
        chosen: [T] tokens of the sampled sentence.

    Source: REX-RAG 2025, arXiv:2508.08149, its code (`exploration_distribution.py`).
    """
    counts: Counter[tuple[int, ...]] = Counter()
    for sentence in pool:
        for length in range(len(sentence) + 1):
            counts[tuple(sentence[:length])] += 1
    logprobs = []
    for place in range(len(chosen)):
        before = tuple(chosen[:place])
        num_continued = counts[before] - sum(tuple(sentence) == before for sentence in pool)
        logprobs.append(math.log(counts[tuple(chosen[: place + 1])] / num_continued))
    return logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtInjection:
    """Samples independent episodes and, for wrong answers with a probability, a second path with a sentence of doubt.

    The answer is removed, a sentence is spliced in, and the policy continues (REX-RAG).

    Source: REX-RAG 2025, arXiv:2508.08149, and its code.
    """

    group_size: int
    """Number of root episodes per task; second paths are additional."""
    chance: float = 0.5
    """Probability from 0 to 1 that a wrong answer gets a second path; 0: independent sampling."""
    sentences: tuple[str, ...] = _SENTENCES
    """Pool of sentences, of which a random one is spliced in."""

    def __post_init__(self) -> None:
        if not 0 <= self.chance <= 1:
            raise OptionError("chance", f"must be from 0 to 1, got {self.chance:g}")
        if not self.sentences:
            raise OptionError("sentences", "must have at least one sentence")

    @property
    def provides(self) -> frozenset[str]:
        """Return `forks`: the groups contain episodes that share turns."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        size = roller.samples(self.group_size)
        paths = await asyncio.gather(*(self._pair(task, roller, i, size) for i in range(size)))
        roots = [path for path, _ in paths]
        return Group(task, (*roots, *(probe for _, probe in paths if probe is not None)))

    async def _pair(self, task: Task, roller: Roller, index: int, size: int) -> tuple[Trajectory, Trajectory | None]:
        path = await roller.sample(task, index=index)
        draw = roller.random(index)
        wrong = path.ended is EndReason.TERMINATED and path.score is not None and not path.solved
        if not wrong or draw.random() >= self.chance:
            return path, None
        pool = [roller.tokenize(sentence) for sentence in self.sentences]
        ids = draw.choice(pool)
        nothing = Tokens.from_ids((), Author.INSERTED)
        logprobs = tuple(splice_logprobs(pool, ids))
        inserted = Tokens(ids, (Author.INSERTED,) * len(ids), logprobs, (-1,) * len(ids), (math.nan,) * len(ids))
        last = len(path.turns) - 1
        return path, await roller.fork(task, path, turns=last, index=size + index, splice=Splice(nothing, inserted))
