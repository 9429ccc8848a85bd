"""The tasks of tau2-bench's domains: a scenario for the user, the gold actions, what has to be said.

Easy to get wrong: what a task is judged by (`reward_basis`). Those of retail are judged by the database and by
assertions in words, for which a model is asked; see `tau2` among the rewards for what stands in for those here.

Source: tau2-bench, arXiv:2506.07982; `tasks.json` and `split_tasks.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from whetstone.chat import Message, ToolSpec
from whetstone.environments.native.scripted import as_message, call, say
from whetstone.environments.tau2.airline import AirlineDesk
from whetstone.environments.tau2.caller import told
from whetstone.environments.tau2.desk import Desk, wanted_differences
from whetstone.environments.tau2.phone import Phone
from whetstone.environments.tau2.retail import RetailDesk
from whetstone.environments.tau2.staging import known
from whetstone.environments.tau2.telecom import TelecomDesk
from whetstone.errors import TaskError
from whetstone.tasks.listed import ListedTasks
from whetstone.trajectory import Task


class Tau2Tasks(ListedTasks):
    """Training tasks and held-out ones as the published split has them: its `train` and its `test`; a subclass says of
    which domain.

    Tasks of `train` in which nothing is to be changed and nothing to be said are not trained on (`left_out`): whoever
    looks at anything and says goodbye has done them, as far as is judged here.

    Args:
        path: The folder with `tasks.json` and `split_tasks.json`.
        seed: The order in which training tasks come.

    Raises:
        TaskError: The folder has no such files, a split names a task that is not there, or a task is judged by what is
            not judged here.
    """

    desk: ClassVar[type[Desk]]

    def __init__(self, *, path: str, seed: int = 0) -> None:
        domain = self.desk.domain
        rows = {row["id"]: row for row in _read(path, "tasks.json", domain)}
        split: Mapping[str, Sequence[str]] = _read(path, "split_tasks.json", domain)
        for name in ("train", "test"):
            strange = [id for id in split.get(name, ()) if id not in rows]
            if strange or not split.get(name):
                raise TaskError(f"{path}/split_tasks.json: {name} names {strange[:3] or 'no task'}, not in tasks.json")
        shared = set(split["train"]) & set(split["test"])
        if shared:
            raise TaskError(f"{path}/split_tasks.json: {len(shared)} tasks are in train and in test")
        held_out = [task_of(rows[id], domain) for id in split["test"]]
        training = [task_of(rows[id], domain) for id in split["train"]]
        kept = [task for task in training if self._something_to_do(path, task)]
        self.left_out = len(training) - len(kept)
        """Tasks of `train` that are not trained on."""
        super().__init__(kept, held_out, seed=seed)

    def _something_to_do(self, path: str, task: Task) -> bool:
        return bool(task.private["to_say"] or wanted_differences(self.desk, path, task.private["actions"]))

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The gold actions one after the other, what has to be said, and goodbye."""
        script = task.private["script"]
        taken = sum(message.role == "assistant" for message in conversation)
        return as_message(script[min(taken, len(script) - 1)])


class RetailTasks(Tau2Tasks):
    """Of the retail domain: orders that are cancelled, changed, returned and exchanged."""

    desk = RetailDesk


class AirlineTasks(Tau2Tasks):
    """Of the airline domain: reservations that are booked, changed and cancelled, or must not be."""

    desk = AirlineDesk


class TelecomTasks(Tau2Tasks):
    """Of the telecom domain: phones without network, data or picture messages, for reasons on both sides."""

    desk = TelecomDesk

    def _something_to_do(self, path: str, task: Task) -> bool:
        return bool(task.private["actions"])


_JUDGED = ("DB", "COMMUNICATE", "NL_ASSERTION", "ACTION")
_JUDGED_IN = {"telecom": ("ENV_ASSERTION", "COMMUNICATE", "ACTION")}
"""What stands in for the others in a domain."""


def _read(path: str, name: str, domain: str) -> Any:
    file = Path(path) / name
    if not file.is_file():
        raise TaskError(f"{file}: no such file; the folder is data/tau2/domains/{domain} of tau2-bench")
    return json.loads(file.read_bytes())


def task_of(row: Mapping[str, Any], domain: str) -> Task:
    """A task as the domain's `tasks.json` has it.

    Raises:
        TaskError: It is judged by what is not judged here.
    """
    criteria, instructions = row["evaluation_criteria"], row["user_scenario"]["instructions"]
    actions = [_action(one) for one in criteria.get("actions") or ()]
    to_say = [str(text) for text in criteria.get("communicate_info") or ()]
    scenario = {
        key: instructions.get(key) or ""
        for key in ("reason_for_call", "known_info", "unknown_info", "task_instructions")
    }
    if persona := row["user_scenario"].get("persona"):
        scenario["persona"] = persona
    script = [
        say(told(one["name"], one["arguments"]))
        if one.get("requestor") == "user"
        else call(one["name"], **one["arguments"])
        for one in actions
    ]
    script.append(say(f"{' '.join([*to_say, ''])}Is there anything else I can help with?"))
    basis = list(criteria.get("reward_basis") or ("DB", "COMMUNICATE"))
    judged = _JUDGED_IN.get(domain, _JUDGED)
    strange = set(basis) - set(judged)
    if strange:
        raise TaskError(f"{domain}: task {row['id']} is judged by {', '.join(sorted(strange))}; here by {judged}")
    assertions = [str(text) for text in criteria.get("nl_assertions") or ()]
    private = {"scenario": scenario, "actions": actions, "to_say": to_say, "script": script}
    private |= {"reward_basis": basis, "assertions": assertions}
    if domain == "telecom":
        private |= _world_of(row)
    return Task(
        f"{domain}/{row['id']}", scenario["reason_for_call"], private, {"domain": domain, "kind": _kind(actions)}
    )


def _world_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a task of telecom begins with, and what must hold in its end."""
    beginning: list[Mapping[str, Any]] = (row.get("initial_state") or {}).get("initialization_actions") or []
    assertions: list[Mapping[str, Any]] = row["evaluation_criteria"].get("env_assertions") or []
    for one in (*beginning, *assertions):
        if not known(one, TelecomDesk, Phone):
            raise TaskError(f"telecom: task {row['id']}: there is no {one['func_name']} of {one['env_type']}")
    return {"beginning": beginning, "world_assertions": assertions}


def _action(given: Mapping[str, Any]) -> dict[str, Any]:
    """A gold action; who does it where that is not the agent, and what of it is compared where that is not all."""
    action = {"name": given["name"], "arguments": given["arguments"]}
    if given.get("compare_args") is not None:
        action["compare_args"] = given["compare_args"]
    return action | ({"requestor": "user"} if given.get("requestor") == "user" else {})


def _kind(actions: Sequence[Mapping[str, Any]]) -> str:
    """The first action that changes something; `none` where none does."""
    reads = ("get_", "find_", "list_", "search_", "calculate", "transfer_")
    return next((action["name"] for action in actions if not action["name"].startswith(reads)), "none")
