"""A maze for searches: three steps, each left or right; one path leads to the coin."""

from whetstone.chat import user
from whetstone.environments.protocol import Observation, StepResult
from whetstone.trajectory import Score, Task

WAY = ("left", "right", "left")
TASK = Task("maze", "Find the coin.", {"answer": "coin"})


class Maze:
    """Walks by words; ends after three steps."""

    def __init__(self):
        self.walked = []

    async def reset(self, task, *, seed):
        self.walked = []
        return Observation((user("left or right?"),))

    async def step(self, action):
        self.walked.append(action.text)
        return StepResult(Observation((user(f"{len(self.walked)} steps"),)), terminated=len(self.walked) == len(WAY))

    async def close(self):
        pass

    def verdict(self):
        return {"success": tuple(self.walked) == WAY}


async def near(trajectory, task):
    """Verify the number of correct steps from the start."""
    right = 0
    for turn, wanted in zip(trajectory.turns, WAY, strict=False):
        if turn.message.text != wanted:
            break
        right += 1
    return Score(float(right))


async def longest(trajectory, task):
    """Prefer long answers."""
    return Score(float(len(trajectory.final_text)))


async def torn_for_some(trajectory, task):
    """Return no score for answers with an x."""
    return Score.unknown("no idea") if "x" in trajectory.final_text else Score(1.0)
