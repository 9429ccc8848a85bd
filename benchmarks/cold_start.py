"""What should an agent have seen before rewards teach it? Traces of one way or of many, and how many of them.

The houses of `text_game`. Traces of one way take the shortest path, north before east before south before west where
there is a choice; traces of many ways are of many experts: each has an order of his own, and some try other doors now
and then and find back. As many traces of either, then the same reinforcement.

How much goes into traces is another question: of a fixed budget of sampled tokens a batch of traces takes PRICE, and
what is left is spent on episodes. `--folder` keeps runs and goes on.
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

from evidence import BENCHES, keep, machine, page
from text_game import MOVES, House, Houses, Room
from whetstone.analysis.comparison import Contender, outcomes_of, run_of, timed_out
from whetstone.analysis.evidence import BenchSettings, read_bench, result_of, row_of
from whetstone.analysis.measures import measure_from
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.recipe import Resolved, load_recipe
from whetstone.record import run_recipe
from whetstone.reporting import Progress
from whetstone.seeding import derive_random
from whetstone.training.agent_evaluation import evaluate
from whetstone.trajectory import Task

TURNS, TASKS, SAMPLES = 10, 40, 8
"""Turns of an episode; held-out tasks and the episodes of each for pass@k."""
BUDGET, PRICE = 64_000, 2_000
"""Sampled tokens, and how many of them a batch of 32 traces, a thousand tokens of an expert, counts for."""
STRAYS = (0.0, 0.15, 0.3)
"""How often an expert of many ways tries any door; one expert in three each."""


class Traces(Houses):
    """Houses whose experts walk in one way or in many.

    Args:
        ways: one, many.
    """

    def __init__(self, *, seed: int = 0, ways: str = "one") -> None:
        super().__init__(seed=seed)
        self.ways = ways

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next door of the task's expert, who always comes to the coin in time."""
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
        far = {name: len(house.path(there) or []) for name, there in doors.items()}
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
    "traces alone": (32, "one"),
    "rewards alone": (0, "one"),
}
"""Updates of imitation, and the traces' kind."""


def made(batches: int, ways: str) -> tuple[Resolved, Resolved | None]:
    """(the recipe of a contender, that of its warm-up)"""
    left = BUDGET - batches * PRICE
    changes: dict[str, Any] = {"tasks.ways": ways}
    # a single update at a rate of nothing leaves the policy as imitation made it
    spent = {"budget.sampled_tokens": left} if left else {"steps": 1, "learning_rate": 1e-12}
    changes |= {f"reinforcement.{key}": value for key, value in spent.items()}
    changes["supervised.steps" if batches else "supervised"] = batches or None
    resolved = load_recipe(dict(COMMON)).with_changes(changes)
    if not batches:
        return resolved, None
    alone = dict.fromkeys(("reinforcement", "objective", "advantage", "rollout.group_size"))
    return resolved, resolved.with_changes(alone)


def measured(folder: Path, summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Success, entropy and pass@k, before reinforcement and behind it."""
    began = run_recipe(folder).recipe.policy.path
    asked: dict[str, Any] = {
        "episodes": TASKS,
        "samples": SAMPLES,
        "temperature": 1.0,
        "progress": Progress(quiet=True),
    }
    before = None if began is None else evaluate(folder, policy=began, **asked).pass_at
    after = evaluate(folder, **asked).pass_at
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
    """What is stored of a contender and seed; trained and measured where it is not there yet."""
    resolved, warm_up = made(*CONTENDERS[name])
    run = run_of(Contender(name, resolved), seed, folder=folder, progress=Progress(quiet=True), warm_up=warm_up)
    kept = run.folder / "measured.json"
    if not kept.is_file():
        kept.write_text(json.dumps(measured(run.folder, run.summary)))
    measures, outcomes = json.loads(kept.read_text()), outcomes_of(run.folder)
    print(name, seed, measures, file=sys.stderr, flush=True)
    found = row_of(settings, name, seed, measures, [outcomes.get(task, 0.0) for task in sorted(outcomes)])
    return {**found, "timed_out": timed_out(run.folder)}


def main() -> None:
    """Run them, print the table, and keep it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-cold-start"), help="where runs are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="keep the result among benchmarks/results/evidence")
    arguments = parser.parse_args()
    settings = read_bench(BENCHES / "cold-start.yaml")
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for seed in range(arguments.seeds):
        for name in CONTENDERS:
            rows.setdefault(name, {})[seed] = row(settings, name, seed, arguments.folder)
    told = result_of("cold-start", settings, rows, world="demo", machine=machine(), budget={}, tasks=120)
    if arguments.write:
        keep(told)
    print(json.dumps(told) if arguments.json else page(told))


if __name__ == "__main__":
    main()
