"""Attribution of a passed deadline: the policy, or the infrastructure."""

from __future__ import annotations

from enum import Enum, auto

from whetstone.capabilities import implements_protocol
from whetstone.rollout.protocol import Actor, Probed
from whetstone.trajectory import EndReason
from whetstone.waiting import BACKEND, DeadlinePassed


class Stage(Enum):
    """Stage of an episode, by which a passed deadline is attributed."""

    OPEN = auto()
    ACT = auto()
    STEP = auto()
    VERDICT = auto()


class TurnTooLong(Exception):
    """A turn took longer than it may."""

    def __init__(self, passed: DeadlinePassed, number: int) -> None:
        super().__init__(str(passed))
        self.passed, self.number = passed, number


async def attribute_deadline(
    late: DeadlinePassed, stage: Stage, actor: Actor, *, turns: int, turn: int = 0
) -> tuple[EndReason, str]:
    """Decide whether the policy or the infrastructure used up the time; (end reason, error).

    It is the infrastructure before the first turn, in the verdict, while a call waits for the rate limit or the next
    attempt of a tool, and if the engine does not answer another request either.

    Args:
        stage: The stage of the episode.
        turns: Number of turns so far.
        turn: Number of the turn whose deadline passed; 0: the deadline of the episode.
    """
    is_infrastructure = not turns or stage is Stage.VERDICT or BACKEND in late.owner
    if not is_infrastructure and stage is Stage.ACT and implements_protocol(actor, Probed):
        is_infrastructure = not await actor.is_answering()
    if is_infrastructure:
        return EndReason.INFRASTRUCTURE, f"{late.owner} did not answer within {late.seconds:g} s"
    return EndReason.TIMEOUT, f"{f'turn {turn} ' if turn else ''}not finished after {late.seconds:g} s"
