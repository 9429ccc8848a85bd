"""Task sources: dates and splits, and instructions with constraints."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from paper_properties import exact
from whetstone.analysis.exact import Figure
from whetstone.chat import assistant
from whetstone.environments.built_in.bug_repair import BugRepairTasks, HiddenTests
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.evaluation.environment_checks.play_episode import play_with_policy
from whetstone.tasks.constrained_instructions import ConstrainedInstructions
from whetstone.tasks.constraint_rules import check_constraint, find_conflict, write_example
from whetstone.tasks.jsonl import Jsonl
from whetstone.tasks.task_dates import DateRange, fraction_after_cutoff, select_dated_tasks
from whetstone.tools.sandbox_tools import Files, Shell
from whetstone.trajectory import Task


@exact(
    "swe-rebench",
    of=(select_dated_tasks, fraction_after_cutoff, HiddenTests),
    note="generated repositories of one module; no model is evaluated",
)
def task_dates_separate_repairs_that_a_model_can_know() -> list[Figure]:
    """Repositories with failing tests are tasks whose reward the tests decide after the agent's edits; of twelve
    monthly tasks a temporal split holds out exactly those from its date on, and a player that memorized all repairs
    before the model's cutoff solves exactly the older ones."""
    source = BugRepairTasks(seed=0, levels=[1])
    rows = []
    for month in range(1, 13):
        task = source.task(month)
        rows.append({"id": f"{month}", "prompt": task.prompt, "private": dict(task.private),
                     "created_at": f"2024-{month:02d}-01"})  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        dated = Jsonl(path=str(path))
    select_dated_tasks(dated, DateRange("created_at", held_out_since="2024-09", cutoff="2024-10-15"))
    held_out = dated.held_out(12)
    scores = [_repair(source, task, knows=task.tags["cutoff"] == "before") for task in held_out]
    newer = [score for task, score in zip(held_out, scores, strict=True) if task.tags["cutoff"] == "after"]
    return [
        Figure("held-out tasks (September to December)", "=", 4, len(held_out)),
        Figure("training tasks from the date on", "=", 0, sum(int(t.id) >= 9 for t in dated.listed_tasks[0])),
        Figure("fraction of held-out tasks newer than the model", "=", 0.5, fraction_after_cutoff(held_out)),
        Figure("success of a player that knows older repairs", "=", 0.5, sum(scores) / len(scores)),
        Figure("its success on newer tasks", "=", 0, sum(newer)),
    ]


def _repair(source: BugRepairTasks, task: Task, *, knows: bool) -> float:
    """Return the score of an episode that edits as the expert does, or changes nothing."""

    def act(conversation: Any, tools: Any, admissible: Any) -> Any:
        return source.demonstrate(task, conversation, tools) if knows else assistant("done")

    def make() -> ToolEnvironment:
        return ToolEnvironment(tools=[Files(sandbox="unsafe"), Shell(sandbox="unsafe"), HiddenTests(sandbox="unsafe")])

    return float(asyncio.run(play_with_policy(make, task, act, seed=7)).trajectory.final["score"])


@exact(
    "multi-dimensional-constraint-framework-evaluating-improving",
    of=(ConstrainedInstructions, find_conflict, check_constraint),
    note="nine kinds of constraints in four categories; level k has one constraint of each of k categories",
)
def every_instruction_of_four_levels_can_be_satisfied() -> list[Figure]:
    """Instructions of level k have k constraints of different categories, a text satisfies all of them, and
    the empty text none; of pairs of constraints on words, exactly the contradictory ones are conflicts."""
    sizes, solved, blank, levels = 0, 0, 0, (1, 2, 3, 4)
    for level in levels:
        source = ConstrainedInstructions(seed=0, levels=[level])
        for task in (source.task(index) for index in range(50)):
            rules = task.private["constraints"]
            sizes += len(rules) != level + 1 or len(task.tags["kind"].split("+")) != level
            solved += all(check_constraint(rule, write_example(rules)) for rule in rules)
            blank += any(check_constraint(rule, "") for rule in rules)
    words = [
        {"kind": kind, "word": word} for kind in ("include", "exclude", "starts_with", "ends_with") for word in "ab"
    ]
    conflicts = sum(find_conflict([one, other]) is not None for k, one in enumerate(words) for other in words[:k])
    return [
        Figure("instructions of levels 1 to 4 with another number of constraints or categories", "=", 0, sizes),
        Figure("instructions that the example text satisfies, of 200", "=", 200, solved),
        Figure("instructions with a constraint that the empty text satisfies", "=", 0, blank),
        # exclude against three kinds, for two words; two different first words; two different last words
        Figure("conflicts among the 28 pairs of constraints on the words a and b", "=", 2 * 3 + 2, conflicts),
    ]
