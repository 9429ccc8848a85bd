"""tau2-bench reward: the final database, the tool calls, and the information communicated to the user.

Natural-language assertions need a model as judge. Most of them are about required information, so the check of
communicated information replaces them here; the others are not judged, but counted.

Note: "10" is in "#W1054" and in "$110". Required information must occur as a whole word or number; the benchmark
itself searches for the letters, and so does `as_published`.

Source: tau2-bench, arXiv:2506.07982.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.trajectory import Score, Task, Trajectory

_NUMBER = re.compile(r"(?<![\w.#-])\d+(?:\.\d+)?(?![\w%]|\.\d)")


async def tau2(trajectory: Trajectory, task: Task, *, as_published: bool = False) -> Score:
    """Return 1 if all checks of the task's `reward_basis` pass and the user ended the conversation, else 0.

    `DB`: the database is as the gold actions leave it. `ACTION`: each gold action was called. `ENV_ASSERTION`: the
    environment's assertions hold. `COMMUNICATE` or `NL_ASSERTION`: the required information was communicated.
    `not_judged` counts natural-language assertions without a replacement. If no change and no information is required,
    at least one action is.

    Args:
        as_published: Count like the benchmark: required information is a substring of a message, `NL_ASSERTION` is left
            to a judge, and tasks without actions need no action. For comparable results, not for training.
    """
    final, private = trajectory.final, task.private
    basis, wanted = private.get("reward_basis", ["DB", "COMMUNICATE"]), private["to_say"]
    texts = [turn.message.text for turn in trajectory.turns if turn.message.text]
    if as_published:
        letters = [text.lower().replace(",", "") for text in texts]
        spoken = "COMMUNICATE" not in basis or all(any(one.lower() in text for text in letters) for one in wanted)
    else:
        talked = "COMMUNICATE" in basis or "NL_ASSERTION" in basis
        spoken = not talked or all(contains_information(text, " ".join(texts)) for text in wanted)
    parts = {
        "database": float(bool(final.get("same")) or "DB" not in basis),
        "communicated": float(spoken),
        "user_ended": float(bool(final.get("user_ended"))),
    }
    if "ACTION" in basis:
        parts["actions"] = float(all_called(trajectory, private["actions"], final.get("user_calls", ())))
    if "ENV_ASSERTION" in basis:
        parts["assertions"] = float(bool(final.get("assertions_met")))
    idle = not as_published and not (final.get("success") or wanted)
    right = all(parts.values()) and not idle
    parts["not_judged"] = 0.0 if wanted and not as_published else float(len(private.get("assertions", ())))
    return Score(float(right), parts, success=right)


def all_called(
    trajectory: Trajectory, actions: Sequence[Mapping[str, Any]], by_user: Sequence[Mapping[str, Any]] = ()
) -> bool:
    """Return whether the agent or the user made each action's call, in any order; omitted arguments are not compared.

    Args:
        trajectory: Finished trajectory.
        actions: Gold actions: mappings with `name`, `arguments`, and optionally `compare_args`.
        by_user: Calls of the user: mappings with `name` and `arguments`.
    """
    calls = [(call.name, _read(call.arguments)) for turn in trajectory.turns for call in turn.message.tool_calls]
    calls += [(str(call["name"]), call["arguments"]) for call in by_user]
    return all(any(_is(action, name, arguments) for name, arguments in calls) for action in actions)


def _is(action: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> bool:
    compared = action.get("compare_args")
    keys = arguments.keys() if compared is None else set(compared)
    meant = action["arguments"]
    return action["name"] == name and {k: v for k, v in arguments.items() if k in keys} == {
        k: v for k, v in meant.items() if k in keys
    }


def _read(arguments: str) -> Mapping[str, Any]:
    try:
        read = json.loads(arguments)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def contains_information(wanted: str, text: str) -> bool:
    """Return whether a text contains a piece of information as whole words; numbers are compared by value.

    >>> contains_information("10", "Order #W1054 has 10 options."), contains_information("10", "#W1054, $110")
    (True, False)
    """
    wanted, text = (each.replace(",", "").lower() for each in (wanted, text))
    if _NUMBER.fullmatch(wanted):
        return any(float(number) == float(wanted) for number in _NUMBER.findall(text))
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", text) is not None
