"""Tasks of tau2-bench's domains: a scenario for the user, the gold actions, and required statements.

Note:
    The criteria of a task are in `reward_basis`. Tasks of retail are judged by the database and by assertions in
    natural language, which a model checks; see the reward `tau2` for their replacement here.

Source: tau2-bench, arXiv:2506.07982; `tasks.json` and `split_tasks.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from whetstone.chat import Message, ToolSpec
from whetstone.environments.built_in.scripted_tasks import as_message, script_call, script_text
from whetstone.environments.tau2.airline import AirlineDesk
from whetstone.environments.tau2.domain import Desk, wanted_differences
from whetstone.environments.tau2.initial_state import action_exists
from whetstone.environments.tau2.phone import Phone
from whetstone.environments.tau2.retail import RetailDesk
from whetstone.environments.tau2.telecom import TelecomDesk
from whetstone.environments.tau2.user_simulator import instruction_text
from whetstone.errors import TaskError
from whetstone.tasks.finite_source import ListedTasks
from whetstone.trajectory import Task


class Tau2Tasks(ListedTasks):
    """Base class of the task sources of tau2-bench's domains.

    Training and held-out tasks are those of the published split, `train` and `test`. A subclass sets the domain.

    Tasks of `train` without required changes or statements are not trained on (`left_out`): an agent that reads
    anything and ends the conversation would succeed in them, by the criteria that are implemented here.

    Args:
        path: The folder with `tasks.json` and `split_tasks.json`.
        seed: Determines the order of training tasks.

    Raises:
        TaskError: If a file is missing, a split names a task that does not exist, or a task has a criterion that is not
            implemented here.
    """

    desk: ClassVar[type[Desk]]
    """Class with the database and the tools of the domain."""

    def __init__(self, *, path: str, seed: int = 0) -> None:
        domain = self.desk.domain
        rows = {row["id"]: row for row in _read(path, "tasks.json", domain)}
        split: Mapping[str, Sequence[str]] = _read(path, "split_tasks.json", domain)
        for name in ("train", "test"):
            strange = [id for id in split.get(name, ()) if id not in rows]
            if strange or not split.get(name):
                raise TaskError(
                    f"{path}/split_tasks.json: the split {name} names {strange[:3] or 'no task'}, not in tasks.json"
                )
        shared = set(split["train"]) & set(split["test"])
        if shared:
            raise TaskError(
                f"{path}/split_tasks.json: {len(shared)} tasks are both in train and in test; "
                "remove them from one split"
            )
        held_out = [parse_task(rows[id], domain) for id in split["test"]]
        training = [parse_task(rows[id], domain) for id in split["train"]]
        useful = [task for task in training if self._requires_action(path, task)]
        self.left_out = len(training) - len(useful)
        """Number of tasks of `train` that are not trained on."""
        super().__init__(useful, held_out, seed=seed)

    def _requires_action(self, path: str, task: Task) -> bool:
        """Return whether a task requires a change of the database or a statement."""
        return bool(task.private["to_say"] or wanted_differences(self.desk, path, task.private["actions"]))

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next gold action.

        After the last gold action, a message has the required statements and a closing question.
        """
        script = task.private["script"]
        taken = sum(message.role == "assistant" for message in conversation)
        return as_message(script[min(taken, len(script) - 1)])


class RetailTasks(Tau2Tasks):
    """Task source of the retail domain: cancel, change, return and exchange orders.

    Args:
        path: The folder with `tasks.json` and `split_tasks.json`.
        seed: Determines the order of training tasks.
    """

    desk = RetailDesk


class AirlineTasks(Tau2Tasks):
    """Task source of the airline domain: book, change and cancel reservations.

    Args:
        path: The folder with `tasks.json` and `split_tasks.json`.
        seed: Determines the order of training tasks.
    """

    desk = AirlineDesk


class TelecomTasks(Tau2Tasks):
    """Task source of the telecom domain: phones with problems.

    A phone has no network, slow data or no picture messages. The causes are settings of the phone or of the company's
    records.

    Args:
        path: The folder with `tasks.json` and `split_tasks.json`.
        seed: Determines the order of training tasks.
    """

    desk = TelecomDesk

    def _requires_action(self, path: str, task: Task) -> bool:
        return bool(task.private["actions"])


_JUDGED = ("DB", "COMMUNICATE", "NL_ASSERTION", "ACTION")
"""Supported criteria of a task."""
_JUDGED_IN = {"telecom": ("ENV_ASSERTION", "COMMUNICATE", "ACTION")}
"""Supported criteria of a domain, if they differ from the default ones."""


def _read(path: str, name: str, domain: str) -> Any:
    """Read a JSON file of a domain.

    Raises:
        TaskError: If the file does not exist.
    """
    file = Path(path) / name
    if not file.is_file():
        raise TaskError(f"{file}: no such file; set path to the folder data/tau2/domains/{domain} of tau2-bench")
    return json.loads(file.read_bytes())


def parse_task(row: Mapping[str, Any], domain: str) -> Task:
    """Parse a task of a domain's `tasks.json`.

    Args:
        row: Object of the file.
        domain: Name of the domain.

    Raises:
        TaskError: If the task has a criterion that is not implemented here.
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
        script_text(instruction_text(one["name"], one["arguments"]))
        if one.get("requestor") == "user"
        else script_call(one["name"], **one["arguments"])
        for one in actions
    ]
    script.append(script_text(f"{' '.join([*to_say, ''])}Is there anything else I can help with?"))
    basis = list(criteria.get("reward_basis") or ("DB", "COMMUNICATE"))
    judged = _JUDGED_IN.get(domain, _JUDGED)
    strange = set(basis) - set(judged)
    if strange:
        raise TaskError(
            f"{domain}: task {row['id']} has the unsupported criterion {', '.join(sorted(strange))}; "
            f"supported: {', '.join(judged)}"
        )
    assertions = [str(text) for text in criteria.get("nl_assertions") or ()]
    private = {"scenario": scenario, "actions": actions, "to_say": to_say, "script": script}
    private |= {"reward_basis": basis, "assertions": assertions}
    if domain == "telecom":
        private |= _initial_and_final_state(row)
    return Task(
        f"{domain}/{row['id']}", scenario["reason_for_call"], private, {"domain": domain, "kind": _kind(actions)}
    )


def _initial_and_final_state(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the initialization actions and final assertions of a telecom task.

    Raises:
        TaskError: If an action or assertion calls a function that is not implemented here.
    """
    beginning: list[Mapping[str, Any]] = (row.get("initial_state") or {}).get("initialization_actions") or []
    assertions: list[Mapping[str, Any]] = row["evaluation_criteria"].get("env_assertions") or []
    for one in (*beginning, *assertions):
        if not action_exists(one, TelecomDesk, Phone):
            raise TaskError(f"telecom: task {row['id']}: no function named {one['func_name']} of {one['env_type']}")
    return {"beginning": beginning, "world_assertions": assertions}


def _action(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a gold action with its name and arguments.

    `requestor` is set if the user performs the action, `compare_args` if only some arguments are compared.
    """
    action = {"name": row["name"], "arguments": row["arguments"]}
    if row.get("compare_args") is not None:
        action["compare_args"] = row["compare_args"]
    return action | ({"requestor": "user"} if row.get("requestor") == "user" else {})


def _kind(actions: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the first gold action that changes something.

    `none` without one.
    """
    reads = ("get_", "find_", "list_", "search_", "calculate", "transfer_")
    return next((action["name"] for action in actions if not action["name"].startswith(reads)), "none")
