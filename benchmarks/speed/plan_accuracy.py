"""Estimated against measured cost: `whetstone plan RECIPE --trial`, and then the run.

    python -m benchmarks plan_accuracy --folder runs/plan-accuracy --json      six recipes as shipped, about 25 minutes
    python -m benchmarks plan_accuracy --folder runs/plan-accuracy --recipes demo       one of them
    python -m benchmarks plan_accuracy --folder runs/plan-accuracy --write              the rest, and the result

Each recipe is a unit: its result is stored in the folder when its run ends, and a unit with a result is not repeated. A
unit that was interrupted starts again, because its minutes are those of an undisturbed run. `--write` requires all
recipes, as shipped.

Ablations are left out. `ratio` is the estimate divided by the measurement; both have to be within a factor of 2.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances

RESULTS = Path(__file__).parents[1] / "results" / "raw" / "plan_accuracy.json"
RECIPES = ("demo", "support", "web-shop", "text-to-sql", "frozen-lake", "multi-hop-search")
MEASURED = ("minutes", "tool_calls", "episodes")


def run_command(*words: str) -> str:
    """Run `whetstone` with these words; return its standard output."""
    command = [sys.executable, "-c", "from whetstone.cli.main import main; main()", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compare(recipe: str, overrides: list[str], folder: Path) -> dict[str, Any]:
    """Return the estimate, the measurement and their ratios for a recipe; from the folder if it has them.

    Args:
        recipe: Name of a built-in recipe.
        overrides: Overrides of its keys, which are part of the result.
        folder: Folder of the unit.
    """
    stored = folder / "unit.json"
    if stored.is_file():
        unit = json.loads(stored.read_text())
        if unit["overrides"] != overrides:
            sys.exit(f"{stored}: was measured with {unit['overrides']}; choose another --folder")
        return dict(unit)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words = [recipe, "ablations=null", *overrides]
    plan = json.loads(run_command("plan", *words, "--trial", "--json"))
    started = time.perf_counter()
    run_command("train", *words, "--run-dir", f"{folder}/run", "--json")
    minutes = (time.perf_counter() - started) / 60
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    unit = {"overrides": overrides, **_ratios(plan, rows, minutes), "trial_seconds": plan["trial"]["seconds"]}
    partial = stored.with_suffix(".partial")
    partial.write_text(json.dumps(unit, indent=1) + "\n")
    partial.rename(stored)
    return unit


def _ratios(plan: dict[str, Any], rows: list[dict[str, Any]], minutes: float) -> dict[str, Any]:
    """Return estimate, measurement and ratio of the run's minutes, and of the calls and episodes of reinforcement."""
    sampled = [row for row in rows if row["stage"] == "reinforcement"]
    measured = {
        "minutes": minutes,
        "tool_calls": sum(row.get("cost_per_step/tool_calls") or 0 for row in sampled),
        "episodes": sum(row.get("cost_per_step/episodes") or 0 for row in sampled),
    }
    stage = next(stage for stage in plan["stages"] if stage["name"] == "reinforcement")
    estimate = {"minutes": plan["total"]["seconds"] / 60, **{name: stage[name] for name in MEASURED[1:]}}
    ratios = {name: estimate[name] / measured[name] for name in MEASURED if measured[name]}
    return {"estimate": estimate, "measured": measured, "ratio": ratios}


def main() -> None:
    """Compare, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/plan-accuracy"), help="Folder of the units.")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="Recipes to measure, separated by commas.")
    parser.add_argument("--json", action="store_true", help="Print the result as JSON.")
    parser.add_argument("--write", action="store_true", help=f"Write {RESULTS.name}.")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    recipes = options.recipes.split(",")
    if unknown := sorted(set(recipes) - set(RECIPES)):
        parser.error(f"--recipes: no {unknown[0]}; there are {', '.join(RECIPES)}")
    if options.write and (set(recipes) != set(RECIPES) or options.overrides):
        parser.error("--write: requires all recipes, without overrides")
    began = time.perf_counter()
    compared = {}
    for recipe in recipes:
        compared[recipe] = compare(recipe, options.overrides, options.folder / recipe)
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
