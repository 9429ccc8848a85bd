"""A reward: a function of an episode and of its task, whose private data the model does not see."""

from whetstone import Score, Task, Trajectory
from whetstone.rewards import final_answer, last_number


async def solved_briefly(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 for the right number, less 0.05 per call and never below 0.5; 0 for a wrong one."""
    right = last_number(final_answer(trajectory) or "") == last_number(str(task.private["answer"]))
    if not right:
        return Score(0.0, parts={"right": 0.0}, success=False)
    cost = min(0.5, 0.05 * len(trajectory.calls))
    return Score(1.0 - cost, parts={"right": 1.0, "cost": -cost}, success=True)
