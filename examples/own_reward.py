"""A custom reward: 1 for the right number, less a cost per tool call.

python examples/own_reward.py [RUN_DIR]
"""

import sys
from typing import Any

import whetstone
from whetstone.rewards import final_answer, last_number
from whetstone.training import RunSummary


async def solved_briefly(trajectory: whetstone.Trajectory, task: whetstone.Task) -> whetstone.Score:
    """Return 1 for the right number, less 0.05 per call and never below 0.5; 0 for a wrong one."""
    right = last_number(final_answer(trajectory) or "") == last_number(str(task.private["answer"]))
    if not right:
        return whetstone.Score(0.0, parts={"right": 0.0}, success=False)
    cost = min(0.5, 0.05 * len(trajectory.calls))
    return whetstone.Score(1.0 - cost, parts={"right": 1.0, "cost": -cost}, success=True)


def main(run_dir: str = "runs/own-reward", **sections: Any) -> RunSummary:
    """Train with the reward."""
    recipe = whetstone.load_recipe("demo", reward=solved_briefly, **{"ablations": None, **sections})
    run = whetstone.train(recipe, run_dir)
    print(f"success {run.after.success:.0%}, reward {run.after.reward:.2f}, {run.after.tool_calls:.1f} calls")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
