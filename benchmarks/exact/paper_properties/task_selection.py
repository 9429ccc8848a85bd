"""Task sources: dates and splits."""

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
