"""Demonstrations before reinforcement: traces of one expert or of many, and the number of traces.

The tasks are the houses of `text_game`. Traces of one expert follow the shortest path, with ties resolved north, east,
south, west. Traces of many experts have one order of doors per expert, and some experts take random doors and return.
Both have the same number of traces and the same subsequent reinforcement.

The split of a fixed token budget is a second question: a batch of traces costs PRICE, the rest is spent on episodes.
`--folder` stores the runs; finished ones are reused.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from claims.bench_settings import BenchSettings, read_bench
from claims.evidence import build_result, build_row
from claims.measures import measure_from
from evidence import BENCHES, describe_machine, page, store_result
from text_game import MOVES, House, Houses, Room
from whetstone.analysis.comparison import Contender, count_timeouts, final_task_outcomes, run_contender
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.recipe import Resolved, load_recipe
from whetstone.record import run_recipe
from whetstone.reporting import Progress
from whetstone.seeding import derive_random
from whetstone.training.agent_evaluation import evaluate
from whetstone.trajectory import Task

TURNS, TASKS, SAMPLES = 10, 40, 8
"""Turns per episode; number of held-out tasks, and episodes per task for pass@k."""
BUDGET, PRICE = 64_000, 2_000
"""Budget in sampled tokens, and the cost of a batch of 32 traces, which has about a thousand tokens."""
STRAYS = (0.0, 0.15, 0.3)
"""Probability that an expert takes a random door; each value holds for a third of the experts."""


class Traces(Houses):
    """Task source of houses whose demonstrations have one expert or many.

    Args:
        ways: `one` or `many`.
    """

    def __init__(self, *, seed: int = 0, ways: str = "one") -> None:
        super().__init__(seed=seed)
        self.ways = ways

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next door of the task's expert, which always reaches the coin in time."""
        if self.ways == "one":
            return super().demonstrate(task, conversation, tools)
        house = House(task.id)
        room, moves = house.start, 0
        for message in conversation:
            for call in message.tool_calls:
                room = house.doors(room).get(json.loads(call.arguments)["direction"], room)
                moves += 1
        return assistant("", ToolCall("go", json.dumps({"direction": self._door(task, house, room, moves)})))

    def _door(self, task: Task, house: House, room: Room, moves: int) -> str:
        expert = derive_random("expert", self.seed, task.id)
        order, stray = expert.sample(list(MOVES), len(MOVES)), expert.choice(STRAYS)
        doors = house.doors(room)
        far = {name: len(house.path(target) or []) for name, target in doors.items()}
        now = derive_random("door", self.seed, task.id, moves)
        if moves + 3 + max(far.values()) <= TURNS and now.random() < stray:
            return now.choice(sorted(doors))
        return min(doors, key=lambda name: (far[name], order.index(name)))


COMMON: Mapping[str, Any] = {
    "extends": "demo",
    "tasks": {"source": "cold_start:Traces", "kinds": None},
    "environment": {"name": "text_game:Walking", "tools": None, "max_calls_per_turn": None, "max_turns": TURNS},
    "reward": "text_game:found_coin",
    "supervised": {"steps": 24},
    "reinforcement": {"steps": 400, "tasks_per_step": 4, "decay_fraction": 0.5},
    "evaluation": {"episodes": 120},
    "ablations": None,
}
CONTENDERS: Mapping[str, tuple[int, str]] = {
    "many ways": (24, "many"),
    "one way": (24, "one"),
    "half traces": (16, "one"),
    "traces only": (32, "one"),
    "rewards only": (0, "one"),
}
"""Contender → (imitation updates, kind of traces)."""


def build_recipes(batches: int, ways: str) -> tuple[Resolved, Resolved | None]:
    """Return (recipe of a contender, recipe of its warm-up)."""
    left = BUDGET - batches * PRICE
    changes: dict[str, Any] = {"tasks.ways": ways}
    # one update with a negligible learning rate leaves the policy of imitation unchanged
    spent = {"budget.sampled_tokens": left} if left else {"steps": 1, "learning_rate": 1e-12}
    changes |= {f"reinforcement.{key}": value for key, value in spent.items()}
    changes["supervised.steps" if batches else "supervised"] = batches or None
    resolved = load_recipe(dict(COMMON)).with_changes(changes)
    if not batches:
        return resolved, None
    without_reinforcement = dict.fromkeys(("reinforcement", "objective", "advantage", "rollout.group_size"))
    return resolved, resolved.with_changes(without_reinforcement)


def measure_run(folder: Path, summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return success, entropy and pass@k before and after reinforcement."""
    began = run_recipe(folder).recipe.policy.path
    options: dict[str, Any] = {
        "episodes": TASKS,
        "samples": SAMPLES,
        "temperature": 1.0,
        "progress": Progress(quiet=True),
    }
    before = None if began is None else evaluate(folder, policy=began, **options).pass_at
    after = evaluate(folder, **options).pass_at
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    entropies = [row["policy/entropy"] for row in rows if row["stage"] == "reinforcement"]
    return {
        "success": summary["stages"][-1]["after"]["success"],
        "success before": summary["stages"][-1]["before"]["success"] if began is not None else None,
        "pass@1 before": None if before is None else before["1"],
        "pass@1": after["1"],
        "pass@8 before": None if before is None else before[str(SAMPLES)],
        "pass@8": after[str(SAMPLES)],
        "entropy before": entropies[0],
        "entropy": entropies[-1],
        "area under the curve": measure_from("area").of(folder, summary),
    }


def row(settings: BenchSettings, name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the stored row of a contender and seed; train and measure it if it is missing."""
    resolved, warm_up = build_recipes(*CONTENDERS[name])
    run = run_contender(Contender(name, resolved), seed, folder=folder, progress=Progress(quiet=True), warm_up=warm_up)
    path = run.folder / "measured.json"
    if not path.is_file():
        path.write_text(json.dumps(measure_run(run.folder, run.summary)))
    measures, outcomes = json.loads(path.read_text()), final_task_outcomes(run.folder)
    print(name, seed, measures, file=sys.stderr, flush=True)
    stored = build_row(settings, name, seed, measures, [outcomes.get(task, 0.0) for task in sorted(outcomes)])
    return {**stored, "timed_out": count_timeouts(run.folder)}


def main() -> None:
    """Run all contenders, print the table, and optionally store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/bench-cold-start"), help="folder of runs; finished ones are reused"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="store the result in benchmarks/results/evidence")
    arguments = parser.parse_args()
    settings = read_bench(BENCHES / "cold-start.yaml")
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for seed in range(arguments.seeds):
        for name in CONTENDERS:
            rows.setdefault(name, {})[seed] = row(settings, name, seed, arguments.folder)
    result = build_result("cold-start", settings, rows, world="demo", machine=describe_machine(), budget={}, tasks=120)
    if arguments.write:
        store_result(result)
    print(json.dumps(result) if arguments.json else page(result))


if __name__ == "__main__":
    main()
