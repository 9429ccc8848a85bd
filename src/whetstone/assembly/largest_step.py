"""Duration of the largest update that fits into a time budget, for the preflight checks."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from whetstone.algorithms import supervised
from whetstone.learning.forward_passes import LocalPasses
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import Policy
from whetstone.trajectory import Author, Segment, Tokens

_STEP_SECONDS = 2.0
"""Time budget for measuring updates, in seconds; the duration of larger updates is extrapolated."""
_FIRST_STEP, _STEP_GROWTH = 32, 4
"""Tokens of the first measured update, and the factor from each update to the next."""


def measure_largest_step(learner: ModelTrainer, policy: Policy, largest: int) -> tuple[float, int]:
    """Return (seconds, tokens) of the largest update that is measured within the time budget.

    The first update includes start-up costs, such as allocations. It counts only if no other one fits into the budget.

    Args:
        learner: Learner whose updates are measured.
        policy: Policy of the learner.
        largest: Number of tokens of the largest update.
    """
    numbers, known, length = random.Random(0), len(policy.tokenizer), policy.context_length

    def measure(tokens: int) -> float:
        each = min(length, tokens)
        drawn = [[numbers.randrange(known) for _ in range(each)] for _ in range(tokens // each)]
        started = time.perf_counter()
        learner.step([_longest(each, ids) for ids in drawn], lambda outputs, _: supervised(outputs.logprobs))
        return time.perf_counter() - started

    tokens = min(_FIRST_STEP, largest)
    seconds = measure(tokens)
    if seconds > _STEP_SECONDS:
        return seconds, tokens
    began = time.perf_counter()
    while True:
        seconds = measure(tokens)
        spent = time.perf_counter() - began
        if tokens == largest or spent + seconds * _STEP_GROWTH > _STEP_SECONDS:
            return seconds, tokens
        tokens = min(_STEP_GROWTH * tokens, largest)


class DryPasses(LocalPasses):
    """Forward passes whose gradients are dropped, so that the checks do not change the weights."""

    def apply(self) -> dict[str, float]:
        """Drop the gradients instead of applying them; see `ForwardPasses.apply`."""
        self.drop()
        return {}


def _longest(length: int, ids: Sequence[int]) -> Segment:
    """Return a segment of expert tokens with the maximum length, for measuring the largest update."""
    tokens = Tokens.from_ids(ids, Author.EXPERT)
    return Segment("largest", 0, tokens, (True,) * length, (0,) * length)
