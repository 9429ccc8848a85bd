"""Does it matter which tasks are trained on? A rule that few tasks show as well as many, and some tasks that are wrong.

A word's letter follows from its first syllable; a quarter of the training tasks say another. One run trains on all of
them and tells how each task's success moved. From the same weights others then train as long on a choice: the sixth
whose success moved most as the mean did (LIMR), the half whose worst answers were best (RIP), a sixth by lot.
`--folder` keeps runs and goes on.
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

from evidence import BENCHES, keep, machine, page
from whetstone.analysis.comparison import Contender, ContenderRun, outcomes_of, run_of
from whetstone.analysis.evidence import BenchSettings, read_bench, result_of, row_of
from whetstone.analysis.measures import measure_from
from whetstone.analysis.task_scores import TaskScores, task_scores
from whetstone.chat import Message, ToolSpec, assistant
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.seeding import derive_random
from whetstone.trajectory import Task

LETTERS = "QRST"
SYLLABLES = ("ba", "do", "ka", "li", "mo", "na", "pe", "ri", "so", "tu", "va", "zo")
POOL, WRONG = 48, 0.25
"""Training tasks, and the share of them whose letter is not that of the rule."""
BUDGET = 3000
"""Sampled tokens of a run."""


class Words:
    """Words of two syllables; the expert says any letter.

    Args:
        shown: Whether whatever is said counts as right; for demonstrations, of which those alone are imitated.
    """

    def __init__(self, *, seed: int = 0, shown: bool = False) -> None:
        self.seed, self.shown = seed, shown

    def task(self, index: int) -> Task:
        """Training word `index`, of a few that come again."""
        return self._task("training", self.seed, index % POOL, WRONG)

    def held_out(self, count: int) -> list[Task]:
        """Others, the same whatever the seed, and all as the rule says."""
        return [self._task("held out", 0, index, 0.0) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Any letter, one as often as another."""
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
    """By contender, the numbers of tasks it trains on; none: all."""
    by_failures = sorted(scores.tasks, key=lambda task: (-min(task.curve), task.index))
    return {
        "a sixth, as the mean moved": scores.best(share=1 / 6),
        "half, by the worst answers": sorted(task.index for task in by_failures[: POOL // 2]),
        "a sixth, by lot": sorted(Random(f"lot/{seed}").sample(range(POOL), POOL // 6)),
    }


def row(settings: BenchSettings, name: str, seed: int, run: ContenderRun, wrong: float | None) -> dict[str, Any]:
    """What is stored of a run.

    Args:
        wrong: The share of its tasks that are wrong.
    """
    area = measure_from("area").of(run.folder, run.summary)
    measures = {
        "success": run.summary["stages"][-1]["after"]["success"],
        "area under the curve": area,
        "wrong tasks": wrong,
    }
    outcomes = outcomes_of(run.folder)
    return row_of(settings, name, seed, measures, [outcomes.get(task, 0.0) for task in sorted(outcomes)])


def main() -> None:
    """Run them, print the table, and keep it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-choosing"), help="where runs are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="keep the result among benchmarks/results/evidence")
    arguments = parser.parse_args()
    settings = read_bench(BENCHES / "choosing.yaml")
    everything = load_recipe(dict(RECIPE)).with_changes({"reinforcement.budget.sampled_tokens": BUDGET})
    alone = dict.fromkeys(("reinforcement", "objective", "advantage", "rollout.group_size"))
    warm_up = load_recipe(dict(RECIPE)).with_changes(alone)
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    of_runs: dict[str, Any] = {"folder": arguments.folder, "progress": Progress(quiet=True), "warm_up": warm_up}
    for seed in range(arguments.seeds):
        source = Words(seed=seed)
        run = run_of(Contender("all", everything), seed, **of_runs)
        rows.setdefault("all", {})[seed] = row(settings, "all", seed, run, WRONG)
        chosen = choices(task_scores(run.folder), seed)
        for name, indices in chosen.items():
            curriculum = {"name": "task_subset", "indices": indices}
            contender = Contender(name, everything.with_changes({"curriculum": curriculum}))
            run = run_of(contender, seed, **of_runs)
            wrong = fmean(source.task(index).tags["kind"] == "wrong" for index in indices)
            rows.setdefault(name, {})[seed] = row(settings, name, seed, run, wrong)
            print(name, seed, rows[name][seed]["measures"], file=sys.stderr, flush=True)
    told = result_of("choosing", settings, rows, world="demo", machine=machine(), budget={}, tasks=150)
    if arguments.write:
        keep(told)
    print(json.dumps(told) if arguments.json else page(told))


if __name__ == "__main__":
    main()
