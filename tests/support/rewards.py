"""Hand-written episodes for rewards: messages, calls and results."""

import asyncio
import json

from whetstone.chat import Message, Text, ToolCall, tool_result, user
from whetstone.rewards import REWARDS, make_reward
from whetstone.trajectory import Author, CallRecord, EndReason, Task, Tokens, Trajectory, Turn

NOTHING = Tokens.from_ids([], Author.ENVIRONMENT)


def turn(text="", *calls, back=(), observed=(), malformed=(), tokens=0, version=0, cost=0.0):
    """Return a turn. Each call is (name, arguments) or (name, arguments, outcome); `back` are the tool results."""
    tool_calls = tuple(
        ToolCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for name, arguments, *_ in calls
    )
    records = tuple(CallRecord(name, rest[0] if rest else "ok", 0.0, cost=cost) for name, _, *rest in calls)
    answers = [*back, *["done"] * (len(calls) - len(back))]
    action = Tokens.from_samples(
        range(tokens), logprobs=(-1.0,) * tokens, versions=(version,) * tokens, entropies=(0.0,) * tokens
    )
    content = (Text(text),) if text else ()
    return Turn(
        NOTHING,
        action,
        Message("assistant", content, tool_calls, malformed=tuple(malformed)),
        (*map(tool_result, answers), *observed),
        calls=records,
    )


def episode(*turns, ended=EndReason.TERMINATED, **more):
    """Return a trajectory of turns; a text is a turn with this answer."""
    built = tuple(turn(one) if isinstance(one, str) else one for one in turns)
    return Trajectory("e", "t", (user("?"),), built, ended, **more)


def task(prompt="?", /, **private):
    return Task("t", prompt, private)


def score(named, trajectory, task, **options):
    """Return the score of a reward, which is a name or a function."""
    reward = make_reward({"name": named, **options}, REWARDS) if isinstance(named, str) else named

    async def main():
        try:
            return await reward(trajectory, task)
        finally:
            if hasattr(reward, "close"):
                await reward.close()

    return asyncio.run(main())


def group(named, trajectories, task, **options):
    """Return the scores of a compared group."""
    reward = make_reward({"name": named, **options}, REWARDS) if isinstance(named, str) else named
    return asyncio.run(reward.compared(trajectories, task))
