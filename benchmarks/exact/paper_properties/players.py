"""A language model, a script and a person as players of one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from paper_properties import exact
from whetstone.analysis.exact import Figure
from whetstone.assembly.players import build_player
from whetstone.chat import Message
from whetstone.evaluation import compare_pairs
from whetstone.reporting import Progress
from whetstone.training import evaluate_agent, load_agent
from whetstone.trajectory import Group

_SMALL = [
    "policy.tiny.hidden_size=16", "policy.tiny.num_heads=2", "policy.tiny.num_layers=1",
    "policy.tiny.intermediate_size=16", "rollout.max_new_tokens=6", "evaluation.episodes=6",
]  # fmt: skip


_CONSTANT = {"answer": "0"}
"""Answer of the script and the person to every task: that of the first task, once the expert has played it."""


def answer_constantly(conversation: Sequence[Message], tools: Any, seed: int) -> str:
    """Return the same answer to every task; a script."""
    return _CONSTANT["answer"]


def _play(player: str | None) -> list[Group]:
    groups: list[Group] = []
    agent = load_agent("demo", _SMALL, player)
    with mock.patch("builtins.input", return_value=_CONSTANT["answer"]), mock.patch("click.echo"):
        evaluate_agent(agent, seed=3, record=None, progress=Progress(quiet=True), on_group=groups.append)
    return groups


@exact("mosaic", of=build_player, note="the model is an untrained policy, and the person a stub that types one answer")
def model_script_and_person_get_one_table() -> list[Figure]:
    """An untrained model, the expert of the tasks, a script and a person play the same six tasks under the same seed:
    all read the same first messages, and one table has a paired row for each two of them. The expert solves every task;
    the script and the person, who give the answer of the first task to all, solve exactly the tasks with this
    answer."""
    script = "paper_properties.players:answer_constantly"
    played = {name or "model": _play(name) for name in (None, "expert")}
    constant = _CONSTANT["answer"] = str(played["expert"][0].task.private["answer"])
    played |= {name: _play(name) for name in (script, "person")}
    openings = {name: {g.task.id: g.trajectories[0].opening for g in groups} for name, groups in played.items()}
    solved = {name: {g.task.id: float(g.trajectories[0].solved) for g in groups} for name, groups in played.items()}
    same = sum(str(group.task.private["answer"]) == constant for group in played["expert"])
    pairs = compare_pairs({name: {0: tasks} for name, tasks in solved.items()})
    return [
        Figure("players with other first messages", "=", 0, sum(o != openings["model"] for o in openings.values())),
        Figure("tasks solved by the expert, of 6", "=", 6, sum(solved["expert"].values())),
        Figure("tasks solved by the script", "=", same, sum(solved[script].values())),
        Figure("tasks solved by the person", "=", same, sum(solved["person"].values())),
        Figure("tasks with the answer of the first task", ">", 0, same),
        Figure("paired rows of four players", "=", 6, len(pairs)),
        Figure("least number of paired tasks", "=", 6, min(pair.tasks for pair in pairs)),
    ]
