"""Which items of a turn's checklist came true? Judged behind every step, counted from the first step at which it did.

Easy to get wrong: an item that became true may be made untrue later; those that say `lasting` are judged once more at
the end of their user's turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.rewards.judged.material import shown_turn
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


@dataclass(frozen=True, slots=True)
class Item:
    """One thing a turn of the conversation should come to."""

    id: str
    question: str
    weight: float
    focus: str = ""
    """What to look at; one that is about calls or their results is not met where the call failed."""
    passes: str = ""
    failures: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """Items it depends on."""
    lasting: bool = False


class Checklist:
    """Σ weights of items that came true, in the mean over a conversation's checklists, over their number of user turns.

    `task.private["checklists"]` is a list of checklists; each is a list with, for every user's turn, its items:
    mappings with `id`, `question`, `weight`, and `focus_on`, `pass_condition`, `failure_examples`, `dependence`,
    `lasting`. The weights of a turn sum to 1. A step belongs to the user's turn it answers.

    Args:
        judge: Asked of each item behind each step, until it is met.
        patience: η: an item met k steps after all it depends on is worth η^k.

    Source: CM2 2026, arXiv:2602.12268, and its code (`checklist_reward`).
    """

    provides = frozenset({"process_rewards"})

    def __init__(self, *, judge: Judge, patience: float = 1.0) -> None:
        if not 0 < patience <= 1:
            raise ValueError(f"patience is above 0 and at most 1, got {patience:g}")
        self.judge, self.patience = judge, patience

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """The weights, each on the step at which its item came true; the outcome is 0, since turns are paid.

        Raises:
            InfrastructureError: The judge gave no answer; the episode leaves the group.
        """
        checklists = [[[_item(one) for one in turn] for turn in checklist] for checklist in task.private["checklists"]]
        steps = user_turns(trajectory)
        paid = [0.0] * len(trajectory.turns)
        shares = []
        for checklist in checklists:
            asked = [
                self._turn(items, [k for k, turn in enumerate(steps) if turn == number], trajectory, task)
                for number, items in enumerate(checklist)
            ]
            came = await asyncio.gather(*asked)
            shares.append(sum(sum(turn.values()) for turn in came) / max(1, len(checklist)))
            for turn in came:
                for step, weight in turn.items():
                    paid[step] += weight / max(1, len(checklist)) / len(checklists)
        value = sum(shares) / max(1, len(shares))
        return Score(0.0, {"checklist": value}, tuple(paid), success=value >= 1 - 1e-9)

    async def _turn(
        self, items: Sequence[Item], steps: Sequence[int], trajectory: Trajectory, task: Task
    ) -> dict[int, float]:
        """Weight by the step at which it was earned."""
        met: dict[str, int] = {}
        for place, step in enumerate(steps):
            due = [item for item in items if item.id not in met and all(other in met for other in item.after)]
            answers = await asyncio.gather(*(self._met(item, trajectory.turns[step], task) for item in due))
            met |= {item.id: place for item, yes in zip(due, answers, strict=True) if yes}
        if steps:
            for item in items:
                if item.lasting and item.id in met and met[item.id] < len(steps) - 1:
                    whole = "\n".join(shown_turn(trajectory.turns[step]) for step in steps)
                    said = await self.judge.answer(
                        Question(
                            f"At the end of this, is it still so? {item.question}",
                            {"task": task.prompt, "steps": whole},
                            YES_OR_NO,
                        )
                    )
                    if not said["met"]:
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
            return False  # nobody needs to be asked
        failures = "".join(f"\nIt is not met, for example, where: {text}" for text in item.failures)
        ask = (
            f"{item.question}\nLook at: {item.focus or 'all of the step'}\n"
            f"It is met where: {item.passes or item.question}{failures}"
        )
        said = await self.judge.answer(Question(ask, {"task": task.prompt, "step": shown_turn(turn)}, _SHAPE))
        return bool(said["met"] and said["focus_present"] and not said["failure_example_applies"])

    async def close(self) -> None:
        """Let go of the judge."""
        await self.judge.close()


def user_turns(trajectory: Trajectory) -> list[int]:
    """[turns] which of the user's turns each answers, from 0."""
    found, now = [], 0
    for turn in trajectory.turns:
        found.append(now)
        now += any(message.role == "user" for message in turn.observation)
    return found


def _item(said: Mapping[str, Any]) -> Item:
    return Item(
        str(said["id"]),
        str(said["question"]),
        float(said["weight"]),
        str(said.get("focus_on", "")),
        str(said.get("pass_condition", "")),
        tuple(map(str, said.get("failure_examples", ()))),
        tuple(map(str, said.get("dependence", ()))),
        bool(said.get("lasting", False)),
    )
