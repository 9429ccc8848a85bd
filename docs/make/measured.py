"""Measured results of components and recipes, one line each, for the generated pages."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from whetstone.analysis.paper_verdicts import Paper, load_papers

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "raw"


@cache
def stored(name: str) -> dict[str, Any]:
    """Load a stored result; empty if it does not exist."""
    path = RESULTS / f"{name}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return result


def on_the_demo(kind: str, name: str) -> str:
    """Format the result of an estimator or loss on the demo's task, by seed; empty if it was not measured."""
    every = stored("methods").get("measured", {}).get("runs", ())
    runs = [run for run in every if (run["kind"], run["method"]) == (kind, name)]
    if not runs:
        return ""
    runs.sort(key=lambda run: run["seed"])
    rates = ", ".join(f"{run['before']:.0%} → {run['after']:.0%}" for run in runs)
    gain = 100 * sum(run["after"] - run["before"] for run in runs) / len(runs)
    line = f"{rates} over {len(runs)} seeds, mean gain {gain:+.1f} points"
    return f"*Measured* on the demo's task: {line} ([all](../../benchmarks/results/methods.md))."


def of_a_world(name: str) -> str:
    """Format the result of a built-in recipe with its interval; empty if it is not stored."""
    one = stored("worlds").get("measured", {}).get(name)
    if one is not None:
        low, high = one["interval"]
        return (
            f"{one['warm_up']:.1%} → {one['reinforced']:.1%} by reinforcement ({100 * low:+.1f} to {100 * high:+.1f} "
            f"points, {one['tasks']} tasks, one seed, {one['minutes']:g} minutes)"
        )
    runs = stored(name.replace("-", "_")).get("runs", ())
    lines = []
    for run in runs:
        evaluations = [run["evaluations"][stage] for stage in ("untrained", "supervised", "reinforcement")]
        steps = " → ".join(f"{each['success']:.1%}" for each in evaluations)
        low, high = evaluations[-1]["interval"]
        lines.append(f"seed {run['seed']}: {steps} ({low:.1%} to {high:.1%}, {evaluations[-1]['episodes']} tasks)")
    return "; ".join(lines)


def papers_of(mechanism: str) -> list[Paper]:
    """Return the papers about a component: `method gigpo`, `advantage turn_gae`."""
    return [paper for paper in load_papers().values() if paper.mechanism == mechanism]


def verdicts(mechanism: str) -> str:
    """Return the effects of the claims of its papers as a list; empty if no paper names the component."""
    lines = []
    for paper in papers_of(mechanism):
        effects = [f"{each.claim}: **{each.verdict}** ({each.reason}): {each.figures}" for each in paper.tried]
        if not effects and paper.page is not None:
            effects = [f"{paper.claim} See [{paper.page}](../../benchmarks/results/{paper.page}.md)."]
        lines += effects or [f"{paper.claim} **Not run**: {paper.why}"]
    return "".join(f"- {line}\n" for line in lines)
