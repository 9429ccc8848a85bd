"""Episodes by hand, for rewards: what was said, called and answered."""

import asyncio
import json

from whetstone.chat import Message, Text, ToolCall, tool_result, user
from whetstone.rewards import REWARDS, make_reward
from whetstone.trajectory import Author, CallRecord, EndReason, Task, Tokens, Trajectory, Turn

NOTHING = Tokens.written([], Author.ENVIRONMENT)


def turn(said="", *calls, back=(), observed=(), malformed=(), tokens=0, version=0, cost=0.0):
    """A turn. Each call is (name, arguments) or (name, arguments, outcome); `back` are the tools' answers."""
    asked = tuple(ToolCall(name, given if isinstance(given, str) else json.dumps(given)) for name, given, *_ in calls)
    records = tuple(CallRecord(name, rest[0] if rest else "ok", 0.0, cost=cost) for name, _, *rest in calls)
    answers = [*back, *["done"] * (len(calls) - len(back))]
    action = Tokens.sampled(
        range(tokens), logprobs=(-1.0,) * tokens, versions=(version,) * tokens, entropies=(0.0,) * tokens
    )
    content = (Text(said),) if said else ()
    return Turn(
        NOTHING,
        action,
        Message("assistant", content, asked, malformed=tuple(malformed)),
        (*map(tool_result, answers), *observed),
        calls=records,
    )


def episode(*turns, ended=EndReason.TERMINATED, **more):
    """Turns, texts among them standing for an answer."""
    made = tuple(turn(one) if isinstance(one, str) else one for one in turns)
    return Trajectory("e", "t", (user("?"),), made, ended, **more)


def task(prompt="?", /, **private):
    return Task("t", prompt, private)


def score(named, trajectory, given, **options):
    """What a reward says, named or made."""
    reward = make_reward({"name": named, **options}, REWARDS) if isinstance(named, str) else named

    async def main():
        try:
            return await reward(trajectory, given)
        finally:
            if hasattr(reward, "close"):
                await reward.close()

    return asyncio.run(main())


def group(named, trajectories, given, **options):
    """What it says of a group."""
    reward = make_reward({"name": named, **options}, REWARDS) if isinstance(named, str) else named
    return asyncio.run(reward.compared(trajectories, given))
