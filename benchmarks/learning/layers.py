"""Compatibility of methods and environments: twelve methods on a calculator, a text game and a search task.

Each cell is one command, `whetstone train WORLD with=METHOD …`, with a model of a few thousand parameters and two
updates: it trains, or reports in one line what the environment lacks. `--results FOLDER` stores finished cells and
reuses them, so that an interrupted command resumes; `--seconds 150` sets a time limit.

Prints a table, or one JSON object with `--json`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances
from whetstone.errors import WhetstoneError
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

WORLDS = {"demo": "calculator", "frozen-lake": "text game", "multi-hop-search": "search"}
METHODS = (
    "dapo", "gspo", "dr-grpo", "rloo", "ppo", "gigpo", "entropy-branching", "rejection-fine-tuning", "online-dpo",
    "otc", "matchtir", "memory-folding",
)  # fmt: skip
SMALL = (
    "policy.tiny.hidden_size=16", "policy.tiny.num_heads=2", "policy.tiny.num_layers=1",
    "policy.tiny.intermediate_size=16",
    "supervised.steps=2", "supervised.batch_size=4", "reinforcement.steps=2", "reinforcement.tasks_per_step=4",
    "rollout.group_size=4", "rollout.max_new_tokens=6", "evaluation.episodes=2",
)  # fmt: skip

_BELOW = """
Two updates of a model of a few thousand parameters do not improve it: the table shows compatibility, not benefit.
Seconds are those of the command without its start. Each cell is one command:

```console
$ whetstone train WORLD with=METHOD {small}
```

`python -m benchmarks layers --results benchmarks/results` writes this table again.
"""


def run_cell(world: str, method: str) -> dict[str, Any]:
    """Run one command and return its result."""
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            train(load_recipe(world, [*SMALL, f"with={method}"]), Path(folder) / "run", progress=Progress(quiet=True))
            rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").open()]
    except WhetstoneError as refused:
        return {"trains": False, "said": str(refused)}
    updates = [row for row in rows if row["stage"] == "reinforcement"]
    return {"trains": True, "updates": len(updates), "seconds": round(time.perf_counter() - began, 1)}


def table(cells: dict[str, dict[str, Any]]) -> str:
    """Return the table as Markdown."""
    worlds = " | ".join(f"{name}, {what}" for name, what in WORLDS.items())
    lines = [f"| method | {worlds} |", "| --- | --- | --- | --- |"]
    for method in METHODS:
        entries = [_format_cell(cells.get(f"{world} {method}")) for world in WORLDS]
        lines.append(f"| {method} | {' | '.join(entries)} |")
    return "\n".join(lines)


def _format_cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "not run yet"
    if result["trains"]:
        return f"{result['updates']} updates, {result['seconds']:.1f} s"
    return f"refused: {result['said']}".replace("|", "\\|")


def main() -> None:
    """Run missing cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit for starting cells")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    began = time.perf_counter()
    stored = arguments.results / "raw" / "layers.json" if arguments.results is not None else None
    if stored is not None:
        stored.parent.mkdir(parents=True, exist_ok=True)
    cells: dict[str, dict[str, Any]] = json.loads(stored.read_text())["measured"] if stored and stored.is_file() else {}
    for method in METHODS:
        for world in WORLDS:
            name = f"{world} {method}"
            if name not in cells and time.perf_counter() - began < arguments.seconds:
                cells[name] = run_cell(world, method)
                if stored is not None:  # finished cells survive an interruption
                    stored.write_text(json.dumps({"measured": cells}, indent=1) + "\n")
    report = {
        "name": "layers", "measured": cells, "ratios": {}, "goal": "each trains, or one line says what is missing",
        **circumstances(began),
    }  # fmt: skip
    print(json.dumps(report) if arguments.json else table(cells))
    if stored is not None:
        stored.write_text(json.dumps(report, indent=1) + "\n")
        small = " ".join(SMALL)
        (stored.parents[1] / f"{stored.stem}.md").write_text(
            f"# Methods in worlds\n\n{table(cells)}\n{_BELOW.format(small=small)}"
        )


if __name__ == "__main__":
    main()
