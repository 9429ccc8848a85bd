"""Episodes, groups and tasks by hand, for checks of rewards and of the selection of groups."""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat import Message, Text, ToolCall, tool_result, user
from whetstone.trajectory import Author, CallRecord, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

EMPTY = Tokens.from_ids((), Author.ENVIRONMENT)
TASK = Task("t", "?")


def make_turn(text: str = "", calls: Sequence[tuple[str, str]] = (), cost: float = 0.0) -> Turn:
    """Build a turn; each call is (tool, arguments as JSON) and succeeds."""
    message = Message("assistant", (Text(text),) if text else (), tuple(ToolCall(*call) for call in calls))
    records = tuple(CallRecord(name, "ok", 0.0, cost=cost) for name, _ in calls)
    return Turn(EMPTY, EMPTY, message, tuple(tool_result("done") for _ in calls), calls=records)


def make_episode(turns: Sequence[Turn], *, name: str = "e", reward: float | None = None) -> Trajectory:
    """Build a finished episode; with a reward it is scored and a success if the reward is positive."""
    score = None if reward is None else Score(reward, success=reward > 0)
    return Trajectory(name, "t", (user("?"),), tuple(turns), EndReason.TERMINATED, score=score)


def make_searches(count: int, *, name: str = "e", reward: float | None = None) -> Trajectory:
    """Build an episode of `count` turns with one search each, and an answer."""
    return make_episode(
        [*(make_turn("", [("search", "{}")]) for _ in range(count)), make_turn("7")], name=name, reward=reward
    )


def make_group(rewards: Sequence[float], *, task: Task = TASK, number: int = 0) -> Group:
    """Build a group of episodes of one turn with these rewards."""
    episodes = (make_episode([make_turn("7")], name=f"{number}-{k}", reward=r) for k, r in enumerate(rewards))
    return Group(task, tuple(episodes), number)
