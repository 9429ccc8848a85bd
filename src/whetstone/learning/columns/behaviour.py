"""Columns of the policy's behavior: tool calls, void turns, end reasons, entropies.

Note:
    Entropies and log-probs of the sampler are stored per token of a segment. Columns have those of action tokens, turn
    by turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from whetstone.learning.columns.declaration import RunCapabilities, column
from whetstone.learning.token_index import IndexedTrajectory
from whetstone.trajectory import EndReason, Tokens

if TYPE_CHECKING:
    from whetstone.learning.columns.batch import Columns


@column("trajectory")
def cut_short(batch: Columns) -> Iterable[float]:
    """1 if a limit of turns, tokens, context or time ended the episode; 0 otherwise."""
    return (float(entry.trajectory.ended.cut_short) for entry in batch.trajectories)


@column("trajectory")
def replayed(batch: Columns) -> Iterable[float]:
    """1 if the trajectory was not played by the policy in this run."""
    return (float(not entry.trajectory.provenance.is_fresh) for entry in batch.trajectories)


@column("turn")
def grounded(batch: Columns) -> Iterable[float]:
    """1 if no tool call of the turn failed or was malformed; a turn without calls cannot fail."""
    for _, entry, t in batch.turns():
        turn = entry.trajectory.turns[t]
        yield float(all(call.outcome == "ok" for call in turn.calls) and not turn.message.malformed)


@column("turn")
def void(batch: Columns) -> Iterable[float]:
    """1 if the turn neither calls a tool nor answers: it has no call, and is not the last turn or was truncated."""
    for _, entry, t in batch.turns():
        trajectory = entry.trajectory
        turn = trajectory.turns[t]
        over = not trajectory.ended.cut_short and trajectory.ended is not EndReason.EARLY_STOPPED
        answers = t + 1 == len(trajectory.turns) and over and bool(turn.message.text)
        yield float(not turn.message.tool_calls and not answers and not turn.aside)


@column("turn")
def first_attempt(batch: Columns) -> Iterable[float]:
    """1 in the turns up to the first answer, which is a turn without a call; 0 afterwards."""
    for entry in batch.trajectories:
        answered = False
        for turn in entry.trajectory.turns:
            yield float(not answered)
            answered |= turn.is_answer


def _untimed(run: RunCapabilities) -> str | None:
    settings = run.recipe.reinforcement
    return (
        "they differ between runs, which reinforcement.deterministic forbids; set it to false"
        if settings is not None and settings.deterministic
        else None
    )


@column("turn", provided_by="a run without `reinforcement.deterministic`", requires=_untimed)
def turn_seconds(batch: Columns) -> Iterable[float]:
    """Seconds of the turn: generation without queueing, and the environment with its tools."""
    for _, entry, t in batch.turns():
        turn = entry.trajectory.turns[t]
        yield max(0.0, turn.generation_seconds - turn.queue_seconds) + turn.environment_seconds


@column("turn")
def turn_entropies(batch: Columns) -> Tensor:
    """Mean entropy of a turn's action tokens; NaN if none was measured."""
    turn, entropies = batch["turn"], batch["entropies"]
    zeros = torch.zeros(len(batch["trajectory"]), dtype=torch.float64)
    sums = zeros.index_add(0, turn, entropies.nan_to_num())
    return sums / zeros.index_add(0, turn, (~entropies.isnan()).double())


@column("token")
def call_tokens(batch: Columns) -> Tensor:
    """1 in turns that call a tool."""
    calls = [float(bool(entry.trajectory.turns[t].message.tool_calls)) for _, entry, t in batch.turns()]
    return torch.tensor(calls, dtype=torch.float64)[batch["turn"]]


@column("token")
def entropies(batch: Columns) -> Tensor:
    """Entropy of the distribution that the token was sampled from, in nats."""
    return _read_stored(batch, lambda tokens: tokens.entropies)


@column("token")
def sampler_logprobs(batch: Columns) -> Tensor:
    """Log-prob of the token under the sampler, stored when it was sampled."""
    return _read_stored(batch, lambda tokens: tokens.logprobs)


@column("token")
def draws(batch: Columns) -> Tensor:
    """Uniform random number from 0 to 1, the same for the same step of a run."""
    return torch.rand(batch.count("token"), generator=batch.generator, dtype=torch.float64)


def _read_stored(batch: Columns, read: Callable[[Tokens], Sequence[float]]) -> Tensor:
    """Return [K] numbers that are stored per token."""

    def of_one(_: int, entry: IndexedTrajectory) -> np.ndarray:
        numbers = np.empty(len(entry))
        for k, segment in enumerate(entry.segments):
            in_segment = entry.segment == k
            numbers[in_segment] = np.asarray(read(segment.tokens))[entry.place[in_segment]]
        return numbers

    return batch.concatenate_tokens(of_one)
