"""Selection of training tasks: LIMR and RIP against a random subset, with wrong labels in a quarter of the tasks.

The letter of a word follows from its first syllable; a quarter of the training tasks have another letter. One run
trains on all tasks and records the success of each. From the same weights, other runs with the same budget train on a
subset: the sixth whose success follows the mean most closely (LIMR), the half with the best worst answers (RIP), and a
random sixth. `--folder` stores the runs; finished ones are reused.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from claims.bench_settings import BenchSettings, read_bench
from claims.evidence import build_result, build_row
from claims.measures import measure_from
from evidence import BENCHES, describe_machine, page, store_result
from whetstone.analysis.comparison import Contender, ContenderRun, final_task_outcomes, run_contender
from whetstone.analysis.task_scores import TaskScores, task_scores
from whetstone.chat import Message, ToolSpec, assistant
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.seeding import derive_random
from whetstone.trajectory import Task

LETTERS = "QRST"
SYLLABLES = ("ba", "do", "ka", "li", "mo", "na", "pe", "ri", "so", "tu", "va", "zo")
POOL, WRONG = 48, 0.25
"""Number of training tasks, and the fraction of them whose letter breaks the rule."""
BUDGET = 3000
"""Budget of a run in sampled tokens."""


class Words:
    """Task source of words with two syllables; demonstrations have random letters.

    Args:
        shown: Whether any letter counts as right; for demonstrations, because only successful ones are imitated.
    """

    def __init__(self, *, seed: int = 0, shown: bool = False) -> None:
        self.seed, self.shown = seed, shown

    def task(self, index: int) -> Task:
        """Return training word `index`, from a small pool that repeats."""
        return self._task("training", self.seed, index % POOL, WRONG)

    def held_out(self, count: int) -> list[Task]:
        """Return held-out words, which do not depend on the seed and obey the rule."""
        return [self._task("held out", 0, index, 0.0) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return a uniformly random letter."""
        return assistant(task.private["answer"])

    def _task(self, split: str, seed: int, index: int, wrong: float) -> Task:
        draw = derive_random("words", split, seed, index)
        first, second = draw.choice(SYLLABLES), draw.choice(SYLLABLES)
        letter = LETTERS[SYLLABLES.index(first) % len(LETTERS)]
        kind = "wrong" if draw.random() < wrong else "right"
        if kind == "wrong":
            letter = draw.choice([each for each in LETTERS if each != letter])
        if self.shown:
            letter = draw.choice(LETTERS)
        return Task(f"words/{split}/{seed}/{index}", f"{first} {second}?", {"answer": letter}, {"kind": kind})


RECIPE: Mapping[str, Any] = {
    "extends": "demo",
    "tasks": {"source": "choosing:Words", "kinds": None},
    "environment": {"tools": [], "max_turns": 1, "max_calls_per_turn": None},
    "reward": "exact_match",
    "supervised": {"steps": 40, "tasks": {"shown": True}},
    "rollout": {"max_new_tokens": 4},
    "reinforcement": {"steps": 400, "tasks_per_step": 8, "decay_fraction": 0.5, "learning_rate": 2.0e-3},
    "evaluation": {"episodes": 150},
    "ablations": None,
}


def choices(scores: TaskScores, seed: int) -> dict[str, list[int]]:
    """Return contender → numbers of the tasks it trains on; empty for all."""
    by_failures = sorted(scores.tasks, key=lambda task: (-min(task.curve), task.index))
    return {
        "a sixth, as the mean moved": scores.select_best(share=1 / 6),
        "half, by the worst answers": sorted(task.index for task in by_failures[: POOL // 2]),
        "a sixth, by lot": sorted(Random(f"lot/{seed}").sample(range(POOL), POOL // 6)),
    }


def row(settings: BenchSettings, name: str, seed: int, run: ContenderRun, wrong: float | None) -> dict[str, Any]:
    """Return the stored row of a run.

    Args:
        wrong: Fraction of its tasks with a wrong letter.
    """
    area = measure_from("area").of(run.folder, run.summary)
    measures = {
        "success": run.summary["stages"][-1]["after"]["success"],
        "area under the curve": area,
        "wrong tasks": wrong,
    }
    outcomes = final_task_outcomes(run.folder)
    return build_row(settings, name, seed, measures, [outcomes.get(task, 0.0) for task in sorted(outcomes)])


def main() -> None:
    """Run all contenders, print the table, and optionally store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/bench-choosing"), help="folder of runs; finished ones are reused"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="store the result in benchmarks/results/evidence")
    arguments = parser.parse_args()
    settings = read_bench(BENCHES / "choosing.yaml")
    everything = load_recipe(dict(RECIPE)).with_changes({"reinforcement.budget.sampled_tokens": BUDGET})
    without_reinforcement = dict.fromkeys(("reinforcement", "objective", "advantage", "rollout.group_size"))
    warm_up = load_recipe(dict(RECIPE)).with_changes(without_reinforcement)
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    of_runs: dict[str, Any] = {"folder": arguments.folder, "progress": Progress(quiet=True), "warm_up": warm_up}
    for seed in range(arguments.seeds):
        source = Words(seed=seed)
        run = run_contender(Contender("all", everything), seed, **of_runs)
        rows.setdefault("all", {})[seed] = row(settings, "all", seed, run, WRONG)
        chosen = choices(task_scores(run.folder), seed)
        for name, indices in chosen.items():
            curriculum = {"name": "task_subset", "indices": indices}
            contender = Contender(name, everything.with_changes({"curriculum": curriculum}))
            run = run_contender(contender, seed, **of_runs)
            wrong = fmean(source.task(index).tags["kind"] == "wrong" for index in indices)
            rows.setdefault(name, {})[seed] = row(settings, name, seed, run, wrong)
            print(name, seed, rows[name][seed]["measures"], file=sys.stderr, flush=True)
    result = build_result("choosing", settings, rows, world="demo", machine=describe_machine(), budget={}, tasks=150)
    if arguments.write:
        store_result(result)
    print(json.dumps(result) if arguments.json else page(result))


if __name__ == "__main__":
    main()
