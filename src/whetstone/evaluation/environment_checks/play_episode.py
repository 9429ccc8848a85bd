"""Plays episodes without a model: with the actions of an expert, a random policy, or a list."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, ToolSpec
from whetstone.environments import Environment, Observation, StepResult
from whetstone.environments.protocol import HasAdmissibleActions
from whetstone.tools.protocol import GivesVerdict
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Author, EndReason, Task, Tokens, Trajectory, Turn

Policy = Callable[[Sequence[Message], Sequence[ToolSpec], Sequence[str]], Message]
"""(conversation, tools, admissible commands) → action"""


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """Episode that was played without a model."""

    actions: tuple[Message, ...]
    """Message of the policy per turn."""
    trajectory: Trajectory
    """The episode; its turns have no tokens."""
    seconds: float
    """Duration from before `reset` until after `close`, in seconds."""

    @property
    def transcript(self) -> str:
        """Return all messages, rewards and results as one text; equal episodes have equal transcripts."""
        trajectory = self.trajectory
        content: list[Any] = [[message.to_openai() for message in trajectory.opening]]
        for turn in trajectory.turns:
            calls = [[call.name, call.outcome] for call in turn.calls]
            observed = [message.to_openai() for message in turn.observation]
            content.append([turn.message.to_openai(), observed, turn.reward, calls])
        content += [trajectory.ended, dict(trajectory.final)]
        return json.dumps(content, sort_keys=True, ensure_ascii=False, default=str)

    @property
    def digest(self) -> str:
        """Return a hash of the transcript (16 hexadecimal digits), to compare episodes across processes."""
        return hashlib.blake2b(self.transcript.encode(), digest_size=8).hexdigest()


async def play_with_policy(
    make: Callable[[], Environment],
    task: Task,
    policy: Policy,
    *,
    seed: int,
    max_turns: int = 60,
    between: Callable[[Environment, int], Awaitable[None]] | None = None,
) -> PlayedEpisode:
    """Play one episode with a policy; the environment is always closed.

    Args:
        make: Function that creates the environment.
        task: Task of the episode.
        policy: Function that returns the action of each turn.
        seed: Seed of `reset`.
        max_turns: Maximum number of turns.
        between: Callback after each turn that does not end the episode, with the number of turns so far.
    """
    began = time.perf_counter()
    environment = make()
    turns: list[Turn] = []
    ended, final = EndReason.MAX_TURNS, {}
    try:
        first: Observation = await call_user_function(environment.reset, task, seed=seed)
        conversation, tools = list(first.messages), first.tools
        for number in range(max_turns):
            offered = (
                await call_user_function(environment.admissible)
                if implements_protocol(environment, HasAdmissibleActions)
                else ()
            )
            action = policy(conversation, tools, offered)
            action = replace(action, tool_calls=tuple(replace(c, id=f"call_{number}") for c in action.tool_calls))
            result: StepResult = await call_user_function(environment.step, action)
            turns.append(_turn(action, result))
            conversation += [action, *result.observation.messages]
            tools = result.observation.tools or tools
            if result.ended is not None:
                ended = result.ended
                break
            if between is not None:
                await between(environment, len(turns))
        if implements_protocol(environment, GivesVerdict):
            final = dict(await call_user_function(environment.verdict))
    finally:
        await call_user_function(environment.close)
    trajectory = Trajectory("played", task.id, first.messages, tuple(turns), ended, final=final)
    return PlayedEpisode(tuple(turn.message for turn in turns), trajectory, time.perf_counter() - began)


def replay_actions(actions: Sequence[Message]) -> Policy:
    """Return a policy that plays recorded actions, one per turn."""
    left = iter(actions)
    return lambda conversation, tools, admissible: next(left)


def _turn(action: Message, result: StepResult) -> Turn:
    nothing = Tokens.from_ids((), Author.ENVIRONMENT)
    calls = tuple(replace(call, seconds=0.0) for call in result.calls)
    return Turn(nothing, nothing, action, result.observation.messages, result.reward, calls)
