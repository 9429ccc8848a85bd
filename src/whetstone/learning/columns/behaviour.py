"""What did the policy do, and how sure was it? Calls, void turns, endings, entropies.

Easy to get wrong: entropies and log-probs of the sampler stand beside each token of a segment, and are read at its
action tokens, turn by turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from whetstone.learning.columns.declaration import column
from whetstone.learning.token_index import IndexedTrajectory
from whetstone.trajectory import EndReason, Tokens

if TYPE_CHECKING:
    from whetstone.learning.columns.batch import Columns


@column("trajectory")
def cut_short(batch: Columns) -> Iterable[float]:
    """1 where a limit ended the episode."""
    return (float(held.trajectory.ended.cut_short) for held in batch.held)


@column("trajectory")
def replayed(batch: Columns) -> Iterable[float]:
    """1 if the trajectory was not played by the policy in this run."""
    return (float(not held.trajectory.provenance.is_fresh) for held in batch.held)


@column("turn")
def grounded(batch: Columns) -> Iterable[float]:
    """1 where every call of a turn could be done; a turn that calls nothing asks nothing that could fail."""
    for _, held, t in batch.turns():
        turn = held.trajectory.turns[t]
        yield float(all(call.outcome == "ok" for call in turn.calls) and not turn.message.malformed)


@column("turn")
def void(batch: Columns) -> Iterable[float]:
    """1 where a turn neither calls a tool nor answers: not the last, or cut off, and without a call."""
    for _, held, t in batch.turns():
        trajectory = held.trajectory
        turn = trajectory.turns[t]
        over = not trajectory.ended.cut_short and trajectory.ended is not EndReason.EARLY_STOPPED
        answers = t + 1 == len(trajectory.turns) and over and bool(turn.message.text)
        yield float(not turn.message.tool_calls and not answers and not turn.aside)


@column("turn")
def first_attempt(batch: Columns) -> Iterable[float]:
    """1 in the turns up to the first that answers, which is one that calls nothing; 0 behind it."""
    for held in batch.held:
        answered = False
        for turn in held.trajectory.turns:
            yield float(not answered)
            message = turn.message
            answered |= not message.tool_calls and not message.malformed and not turn.aside


@column("turn")
def turn_entropies(batch: Columns) -> Tensor:
    """The mean entropy of a turn's action tokens; NaN where none was measured."""
    turn, entropies = batch["turn"], batch["entropies"]
    zeros = torch.zeros(len(batch["trajectory"]), dtype=torch.float64)
    sums = zeros.index_add(0, turn, entropies.nan_to_num())
    return sums / zeros.index_add(0, turn, (~entropies.isnan()).double())


@column("token")
def call_tokens(batch: Columns) -> Tensor:
    """1 in turns that call a tool."""
    calls = [float(bool(held.trajectory.turns[t].message.tool_calls)) for _, held, t in batch.turns()]
    return torch.tensor(calls, dtype=torch.float64)[batch["turn"]]


@column("token")
def entropies(batch: Columns) -> Tensor:
    """Of the distribution a token was drawn from, in nats."""
    return _beside(batch, lambda tokens: tokens.entropies)


@column("token")
def sampler_logprobs(batch: Columns) -> Tensor:
    """What the sampler said of a token when it drew it."""
    return _beside(batch, lambda tokens: tokens.logprobs)


@column("token")
def draws(batch: Columns) -> Tensor:
    """Uniform chance from 0 to 1, the same for the same step of a run."""
    return torch.rand(batch.count("token"), generator=batch.draw, dtype=torch.float64)


def _beside(batch: Columns, read: Callable[[Tokens], Sequence[float]]) -> Tensor:
    """[K] of what stands beside each token."""

    def of_one(_: int, held: IndexedTrajectory) -> np.ndarray:
        found = np.empty(len(held))
        for k, segment in enumerate(held.segments):
            here = held.segment == k
            found[here] = np.asarray(read(segment.tokens))[held.place[here]]
        return found

    return batch.of_tokens(of_one)
