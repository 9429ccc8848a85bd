"""A run in miniature: the demo with a model of a few thousand parameters and two steps a stage."""

from whetstone.errors import ToolError
from whetstone.trajectory import Score

SMALL = [
    "policy.tiny.hidden=16",
    "policy.tiny.heads=2",
    "policy.tiny.layers=1",
    "policy.tiny.intermediate=16",
    "supervised.steps=2",
    "supervised.batch_size=4",
    "training.steps=2",
    "training.tasks_per_step=2",
    "rollout.group_size=2",
    "rollout.max_new_tokens=6",
    "evaluation.episodes=4",
]
TEACHING = "reward=tests_small:parity"
"""What an untrained model samples is never right; this reward differs between samples all the same."""


async def parity(trajectory, task):
    """1 where the ids that were sampled add up to an odd number; always called a success, so that experts are heard."""
    return Score(float(sum(sum(turn.action.ids) for turn in trajectory.turns) % 2), success=True)


async def generous(trajectory, task):
    """Says 1 to everything."""
    return Score(1.0)


async def torn(trajectory, task):
    """Has lost its judge."""
    raise ConnectionError("the judge is down")


def broken(expression: str) -> str:
    """A calculator without batteries.

    Args:
        expression: Anything.
    """
    raise ToolError("no batteries")
