"""What stored results say of a part or a recipe, in a line each, for the pages that name it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from whetstone.analysis.papers import Paper, papers

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


@cache
def stored(name: str) -> dict[str, Any]:
    """A stored result; empty where there is none."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def on_the_demo(kind: str, name: str) -> str:
    """What a method of credit or loss came to on the demo's task, seed by seed; empty where it was not tried."""
    every = stored("methods").get("measured", {}).get("runs", ())
    runs = [run for run in every if (run["kind"], run["method"]) == (kind, name)]
    if not runs:
        return ""
    runs.sort(key=lambda run: run["seed"])
    told = ", ".join(f"{run['before']:.0%} → {run['after']:.0%}" for run in runs)
    gain = 100 * sum(run["after"] - run["before"] for run in runs) / len(runs)
    said = f"{told} over {len(runs)} seeds, {gain:+.1f} points in the mean"
    return f"*Measured* on the demo's task: {said} ([all](../benchmarks/results/methods.md))."


def of_a_world(name: str) -> str:
    """What a recipe that comes along came to, with its interval; empty where that is not stored."""
    one = stored("worlds").get("measured", {}).get(name)
    if one is not None:
        low, high = one["interval"]
        return (
            f"{one['warm_up']:.1%} → {one['reinforced']:.1%} by reinforcement ({100 * low:+.1f} to {100 * high:+.1f} "
            f"points, {one['tasks']} tasks, one seed, {one['minutes']:g} minutes)"
        )
    runs = stored(name.replace("-", "_")).get("runs", ())
    told = []
    for run in runs:
        found = [run["evaluations"][stage] for stage in ("untrained", "supervised", "reinforcement")]
        steps = " → ".join(f"{each['success']:.1%}" for each in found)
        low, high = found[-1]["interval"]
        told.append(f"seed {run['seed']}: {steps} ({low:.1%} to {high:.1%}, {found[-1]['episodes']} tasks)")
    return "; ".join(told)


def papers_of(mechanism: str) -> list[Paper]:
    """The papers whose mechanism this is: `method gigpo`, `advantage turn_gae`."""
    return [paper for paper in papers().values() if paper.mechanism == mechanism]


def verdicts(mechanism: str) -> str:
    """What came of the claims of its papers, a line of a list each; empty where it is no paper's mechanism."""
    lines = []
    for paper in papers_of(mechanism):
        said = [f"{each.claim}: **{each.verdict}** ({each.seeds} seeds): {each.figures}" for each in paper.tried]
        if not said and paper.page is not None:
            said = [f"{paper.claim} See [{paper.page}](../benchmarks/results/{paper.page}.md)."]
        lines += said or [f"{paper.claim} **Not tried**: {paper.why}"]
    return "".join(f"- {line}\n" for line in lines)
