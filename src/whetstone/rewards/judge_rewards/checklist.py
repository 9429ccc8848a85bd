"""Checklist reward (CM2): a judge checks after every step which items of a user turn's checklist are met.

Note: An item that is met may become unmet later; items with `lasting` are judged again at the end of the user turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.rewards.judge_rewards.judge_input import format_turn
from whetstone.rewards.judges import YES_OR_NO, Judge, Question
from whetstone.trajectory import Score, Task, Trajectory, Turn

_SHAPE: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "focus_present": {"type": "boolean"},
        "reason": {"type": "string", "maxLength": 2000},
        "failure_example_applies": {"type": "boolean"},
        "met": {"type": "boolean"},
    },
    "required": ["focus_present", "reason", "failure_example_applies", "met"],
    "additionalProperties": False,
}
_QUOTED_SHAPE: Mapping[str, Any] = {
    **_SHAPE,
    "properties": {"quote": {"type": "string", "maxLength": 500}, **_SHAPE["properties"]},
    "required": ["quote", *_SHAPE["required"]],
}
_MIN_QUOTE = 8
"""Minimum number of characters of a quote that is not a whole line of the record."""


@dataclass(frozen=True, slots=True)
class Item:
    """Item of a checklist: a yes-or-no question about a user turn."""

    id: str
    question: str
    weight: float
    """Weight of the item; the weights of a user turn sum to 1."""
    focus: str = ""
    """Aspect that the judge has to look at; an item about tool calls is not met if all calls of the step failed."""
    passes: str = ""
    """Condition under which the item is met."""
    failures: tuple[str, ...] = ()
    """Examples of steps that do not meet the item."""
    after: tuple[str, ...] = ()
    """Ids of the items that must be met first."""
    lasting: bool = False
    """Whether the item is judged again at the end of the user turn."""


class Checklist:
    """Sums the weights of met checklist items per user turn, averaged over a conversation's checklists.

    `task.private["checklists"]` is a list of checklists. Each is a list with the items of every user turn: mappings
    with `id`, `question`, `weight`, and `focus_on`, `pass_condition`, `failure_examples`, `dependence`, `lasting`. The
    weights of a turn sum to 1. A step belongs to the user turn to which it responds.

    Args:
        judge: Judge that decides on each item after each step, until the item is met.
        patience: Discount η: an item met k steps after all its dependencies counts η^k.
        quotes: Require a quote from the step for each met item. An item whose quote is not in the record of the step is
            not met; for items about tool calls, the record is the calls and their results without the agent's text.

    Source: CM2 2026, arXiv:2602.12268, and its code (`checklist_reward`).
    """

    provides = frozenset({"process_rewards"})

    def __init__(self, *, judge: Judge, patience: float = 1.0, quotes: bool = False) -> None:
        if not 0 < patience <= 1:
            raise ValueError(f"patience must be in (0, 1], got {patience:g}")
        self.judge, self.patience, self.quotes = judge, patience, quotes

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory: each item's weight is a reward of the step that met the item; the outcome is 0.

        Raises:
            InfrastructureError: If the judge returns no valid answer; the episode is excluded from the group.
        """
        checklists = [[[_item(one) for one in turn] for turn in checklist] for checklist in task.private["checklists"]]
        steps = user_turn_indices(trajectory)
        turn_rewards = [0.0] * len(trajectory.turns)
        scores = []
        for checklist in checklists:
            pending = [
                self._turn(items, [k for k, turn in enumerate(steps) if turn == number], trajectory, task)
                for number, items in enumerate(checklist)
            ]
            results = await asyncio.gather(*pending)
            scores.append(sum(sum(turn.values()) for turn in results) / max(1, len(checklist)))
            for turn in results:
                for step, weight in turn.items():
                    turn_rewards[step] += weight / max(1, len(checklist)) / len(checklists)
        value = sum(scores) / max(1, len(scores))
        return Score(0.0, {"checklist": value}, tuple(turn_rewards), success=value >= 1 - 1e-9)

    async def _turn(
        self, items: Sequence[Item], steps: Sequence[int], trajectory: Trajectory, task: Task
    ) -> dict[int, float]:
        """Judge the items of one user turn; return the sum of the weights of met items by step."""
        met: dict[str, int] = {}
        for place, step in enumerate(steps):
            due = [item for item in items if item.id not in met and all(other in met for other in item.after)]
            answers = await asyncio.gather(*(self._met(item, trajectory.turns[step], task) for item in due))
            met |= {item.id: place for item, yes in zip(due, answers, strict=True) if yes}
        if steps:
            for item in items:
                if item.lasting and item.id in met and met[item.id] < len(steps) - 1:
                    all_steps = "\n".join(format_turn(trajectory.turns[step]) for step in steps)
                    answer = await self.judge.answer(
                        Question(
                            f"At the end of this, is it still so? {item.question}",
                            {"task": task.prompt, "steps": all_steps},
                            YES_OR_NO,
                        )
                    )
                    if not answer["met"]:
                        del met[item.id]
        earned: dict[int, float] = {}
        for item in items:
            if item.id in met:
                ready = max((met[other] for other in item.after if other in met), default=0)
                step = steps[met[item.id]]
                earned[step] = earned.get(step, 0.0) + item.weight * self.patience ** (met[item.id] - ready)
        return earned

    async def _met(self, item: Item, turn: Turn, task: Task) -> bool:
        if "tool" in item.focus and turn.calls and all(call.outcome != "ok" for call in turn.calls):
            return False  # decided without the judge
        failures = "".join(f"\nIt is not met, for example, where: {text}" for text in item.failures)
        ask = (
            f"{item.question}\nLook at: {item.focus or 'all of the step'}\n"
            f"It is met where: {item.passes or item.question}{failures}"
        )
        if self.quotes:
            ask += "\nIf it is met, quote the words of the step that show it, word for word."
        shape = _QUOTED_SHAPE if self.quotes else _SHAPE
        answer = await self.judge.answer(Question(ask, {"task": task.prompt, "step": format_turn(turn)}, shape))
        is_met = answer["met"] and answer["focus_present"] and not answer["failure_example_applies"]
        return bool(is_met and (not self.quotes or is_quoted(str(answer["quote"]), _format_record(item, turn))))

    async def close(self) -> None:
        """Close the judge and its connections."""
        await self.judge.close()


def is_quoted(quote: str, record: str) -> bool:
    """Return whether a record contains a quote, ignoring white space; a quote has 8 characters or is a whole line.

    Args:
        quote: Quoted text.
        record: Text that must contain it.

    >>> is_quoted("refund of  40 EUR", "tool: refund of 40 EUR is paid"), is_quoted("a", "a b c d e")
    (True, False)
    """
    words = " ".join(quote.split())
    lines = {" ".join(line.split()) for line in record.split("\n")}
    is_long = len(words) >= _MIN_QUOTE and words in " ".join(record.split())
    return bool(words) and (is_long or words in lines)


def _format_record(item: Item, turn: Turn) -> str:
    """Return the text of a step that an item's quote must be from."""
    if "tool" not in item.focus:
        return format_turn(turn)
    calls = [f"{call.name} {call.arguments}" for call in turn.message.tool_calls]
    return "\n".join([*calls, *(message.text for message in turn.observation if message.role == "tool")])


def user_turn_indices(trajectory: Trajectory) -> list[int]:
    """Return [turns] indices of the user turn to which each turn of the agent responds, from 0."""
    indices, now = [], 0
    for turn in trajectory.turns:
        indices.append(now)
        now += any(message.role == "user" for message in turn.observation)
    return indices


def _item(fields: Mapping[str, Any]) -> Item:
    return Item(
        str(fields["id"]),
        str(fields["question"]),
        float(fields["weight"]),
        str(fields.get("focus_on", "")),
        str(fields.get("pass_condition", "")),
        tuple(map(str, fields.get("failure_examples", ()))),
        tuple(map(str, fields.get("dependence", ()))),
        bool(fields.get("lasting", False)),
    )
