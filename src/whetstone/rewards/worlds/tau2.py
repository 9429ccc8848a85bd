"""Was the customer helped, as tau2-bench counts it: the database, what was called, and what had to be said.

What its natural-language assertions ask takes a model to judge. Most of them are about what has to be said, and that
stands in for them here; the others are not judged, and counted.

Easy to get wrong: "10" is in "#W1054" and in "$110". What had to be said is a whole word or number; the benchmark
itself looks for the letters, and `as_published` does, too.

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
    """1 where all that the task's `reward_basis` names is as it should be and the user ended the conversation; else 0.

    `DB`: the database is as the gold actions leave it. `ACTION`: each gold action was called. `ENV_ASSERTION`: the
    world is as the assertions say. `COMMUNICATE` or `NL_ASSERTION`: what had to be said was said. `not_judged` counts
    assertions in words for which nothing stands in. Where nothing was to be changed or said, anything at all has to
    have been done.

    Args:
        as_published: Count as the benchmark counts: what had to be said is letters in a message, `NL_ASSERTION` is left
            to a judge, and where nothing was to be done, goodbye is enough. For figures to compare, not to train on.
    """
    final, private = trajectory.final, task.private
    basis, wanted = private.get("reward_basis", ["DB", "COMMUNICATE"]), private["to_say"]
    texts = [turn.message.text for turn in trajectory.turns if turn.message.text]
    if as_published:
        letters = [text.lower().replace(",", "") for text in texts]
        spoken = "COMMUNICATE" not in basis or all(any(one.lower() in text for text in letters) for one in wanted)
    else:
        talked = "COMMUNICATE" in basis or "NL_ASSERTION" in basis
        spoken = not talked or all(was_said(text, " ".join(texts)) for text in wanted)
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
    """Whether each action was called, in any order, by whomever; an argument that a call leaves out is not compared.

    Args:
        by_user: What the user called: `name` and `arguments`.
    """
    made = [(call.name, _read(call.arguments)) for turn in trajectory.turns for call in turn.message.tool_calls]
    made += [(str(call["name"]), call["arguments"]) for call in by_user]
    return all(any(_is(action, name, arguments) for name, arguments in made) for action in actions)


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


def was_said(wanted: str, said: str) -> bool:
    """Whether a text says another one, as a whole; a number may be written in another way.

    >>> was_said("10", "Order #W1054 has 10 options."), was_said("10", "#W1054, $110"), was_said("481.5", "$481.50")
    (True, False, True)
    """
    wanted, said = (text.replace(",", "").lower() for text in (wanted, said))
    if _NUMBER.fullmatch(wanted):
        return any(float(number) == float(wanted) for number in _NUMBER.findall(said))
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", said) is not None
