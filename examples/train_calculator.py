"""Train a small agent to use a calculator: the recipe `demo` with fewer steps, from Python.

python examples/train_calculator.py [RUN_DIR]
"""

import sys
from typing import Any

import whetstone
from whetstone.training import RunSummary


def main(run_dir: str = "runs/calculator", **sections: Any) -> RunSummary:
    """Train, and print the results."""
    recipe = whetstone.load_recipe("demo", **{"ablations": None, "reinforcement": {"steps": 30}, **sections})
    run = whetstone.train(recipe, run_dir)
    for stage, evaluation in run.evaluations.items():
        low, high = evaluation.interval
        print(f"{stage:<14} {evaluation.success:.0%}  ({low:.0%} to {high:.0%})")
    print(f"{run.before.success:.0%} → {run.after.success:.0%}   {run.run_dir / 'report.html'}")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
