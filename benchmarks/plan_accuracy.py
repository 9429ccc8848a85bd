"""Estimated against measured cost: `whetstone plan RECIPE --trial`, and then the run.

    python benchmarks/plan_accuracy.py --json                 six recipes as shipped, about 25 minutes
    python benchmarks/plan_accuracy.py --recipes demo --write

Ablations are left out. `ratio` is the estimate divided by the measurement; both have to be within a factor of 2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances

RESULTS = Path(__file__).parent / "results" / "plan_accuracy.json"
RECIPES = ("demo", "frozen-lake", "support", "text-to-sql", "twenty-questions", "web-shop")
MEASURED = ("minutes", "tool_calls", "episodes")


def run_command(*words: str) -> str:
    """Run `whetstone` with these words; return its standard output."""
    command = [sys.executable, "-c", "from whetstone.cli.main import main; main()", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compare(recipe: str, overrides: list[str]) -> dict[str, Any]:
    """Plan and run a recipe; return the estimate, the measurement and their ratios."""
    words = [recipe, "ablations=null", *overrides]
    plan = json.loads(run_command("plan", *words, "--trial", "--json"))
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        run_command("train", *words, "--run-dir", f"{folder}/run", "--json")
        minutes = (time.perf_counter() - started) / 60
        rows = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
    sampled = [row for row in rows if row["stage"] == "reinforcement"]
    measured = {
        "minutes": minutes,
        "tool_calls": sum(row.get("cost_per_step/tool_calls") or 0 for row in sampled),
        "episodes": sum(row.get("cost_per_step/episodes") or 0 for row in sampled),
    }
    stage = next(stage for stage in plan["stages"] if stage["name"] == "reinforcement")
    estimate = {"minutes": plan["total"]["seconds"] / 60, **{name: stage[name] for name in MEASURED[1:]}}
    ratios = {name: estimate[name] / measured[name] for name in MEASURED if measured[name]}
    return {"estimate": estimate, "measured": measured, "ratio": ratios, "trial_seconds": plan["trial"]["seconds"]}


def main() -> None:
    """Compare, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    began = time.perf_counter()
    compared = {}
    for recipe in options.recipes.split(","):
        compared[recipe] = compare(recipe, options.overrides)
        print(recipe, json.dumps(compared[recipe]["ratio"]), file=sys.stderr, flush=True)
    ratios = [each["ratio"]["minutes"] for each in compared.values()]
    result = {
        "name": "plan_accuracy",
        "measured": compared,
        "ratios": {"minutes_median": statistics.median(ratios), "minutes_worst": min(min(r, 1 / r) for r in ratios)},
        "goal": "every ratio of minutes between 0.5 and 2",
        "bound": 1.0,
        **circumstances(began),
    }
    if options.write:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
