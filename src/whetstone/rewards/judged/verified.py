"""Rules first, and a verifier only where they cannot tell: it may calculate and convert before it says yes or no.

Which way decided is logged: `by_rule`, `by_verifier`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from whetstone.errors import InfrastructureError, ToolError
from whetstone.rewards.answers.exact_match import same_answer
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.judged.material import without_thoughts
from whetstone.rewards.judges import Judge, Question
from whetstone.tools.arithmetic import calculator
from whetstone.trajectory import Score, Task, Trajectory

_QUANTITY = re.compile(r"\s*([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s].*)?\s*")
_UNITS: Mapping[str, tuple[str, float]] = {
    unit: (kind, size)
    for kind, units in {
        "length": {"m": 1, "cm": 0.01, "mm": 0.001, "km": 1000, "in": 0.0254, "ft": 0.3048, "mi": 1609.344, "nm": 1e-9},
        "mass": {"kg": 1, "g": 0.001, "mg": 1e-6, "t": 1000, "lb": 0.45359237},
        "time": {"s": 1, "ms": 0.001, "min": 60, "h": 3600, "us": 1e-6, "ns": 1e-9},
        "energy": {"j": 1, "kj": 1000, "mj": 1e6, "ev": 1.602176634e-19, "cal": 4.184, "kcal": 4184, "kwh": 3.6e6},
        "volume": {"l": 1, "ml": 0.001, "m^3": 1000, "m3": 1000, "cm^3": 0.001, "cm3": 0.001},
        "pressure": {"pa": 1, "kpa": 1000, "mpa": 1e6, "bar": 1e5, "atm": 101325},
        "share": {"%": 0.01},
    }.items()
    for unit, size in units.items()
}  # fmt: skip
_NEXT: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "thought": {"type": "string", "maxLength": 2000},
        "tool": {"type": "string", "enum": ["calculator", "convert", "none"]},
        "input": {"type": "string", "maxLength": 300},
        "verdict": {"type": "string", "enum": ["correct", "incorrect", "undecided"]},
    },
    "required": ["thought", "tool", "input", "verdict"],
    "additionalProperties": False,
}


class Verified:
    """1 if the final answer equals `task.private["answer"]`: by rule if rules can decide, else by a verifier with
    tools.

    Rules compare texts, numbers to a relative tolerance, and quantities in units. They abstain if one of the two is
    no known quantity, and a verifier is asked, who may use a calculator and a converter of units for a few steps.
    Without a verifier, what rules cannot tell is wrong, and counted as `undecided`.

    Args:
        judge: The verifier.
        tolerance: Relative, of numbers.
        steps: How often the verifier may use a tool.

    Its tools compute with numbers and units and know no algebra: whether two formulas are one, the verifier has to see
    by itself (`symbolic` can tell).

    Source: the order of CoSineVerifier 2026 (rules first, then a verifier with tools), without its computer algebra and
    without its training; steps as in Themis, arXiv:2310.01045 (thought, call, observation, rationale, score).
    """

    def __init__(self, *, judge: Judge | None = None, tolerance: float = 1e-4, steps: int = 4) -> None:
        if steps < 1:
            raise ValueError(f"steps is 1 or more, got {steps}")
        self.judge, self.tolerance, self.steps = judge, tolerance, steps

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Compare them.

        Raises:
            InfrastructureError: The verifier gave no answer, or came to none.
        """
        said, wanted = final_answer(trajectory), str(task.private["answer"])
        if said is None:
            return _score(False, by_rule=True)
        said = without_thoughts(said)
        ruled = same_quantity(said, wanted, tolerance=self.tolerance)
        if ruled is not None:
            return _score(ruled, by_rule=True)
        if self.judge is None:
            return _score(False, undecided=True)
        return _score(await self._asked(self.judge, task, said, wanted), by_verifier=True)

    async def _asked(self, judge: Judge, task: Task, said: str, wanted: str) -> bool:
        observed: list[str] = []
        for _ in range(self.steps + 1):
            material = {"question": task.prompt, "answer": said, "reference": wanted}
            if observed:
                material["what your tools said"] = "\n".join(observed)
            ask = (
                "Is the answer the same as the reference? You may use `calculator` (an expression of numbers) or "
                "`convert` (such as `3 km to m`) first; give tool none and a verdict when you know."
            )
            step = await judge.answer(Question(ask, material, _NEXT))
            if step["tool"] == "none":
                if step["verdict"] == "undecided":
                    break
                return bool(step["verdict"] == "correct")
            observed.append(f"{step['tool']}({step['input']}) = {used(str(step['tool']), str(step['input']))}")
        raise InfrastructureError("the verifier came to no verdict")

    async def close(self) -> None:
        """Let go of the verifier."""
        if self.judge is not None:
            await self.judge.close()


def same_quantity(said: str, wanted: str, *, tolerance: float = 1e-4) -> bool | None:
    """Whether two answers are the same; None where rules cannot tell.

    >>> same_quantity("1.5 km", "1500 m"), same_quantity("2 kg", "2 m"), same_quantity("blue", "azure")
    (True, False, None)
    """
    if same_answer(said, wanted):
        return True
    ours, theirs = quantity(said), quantity(wanted)
    if ours is None or theirs is None:
        return None
    if ours[0] != theirs[0]:
        return None if "" in (ours[0], theirs[0]) else False
    return bool(abs(ours[1] - theirs[1]) <= tolerance * max(abs(ours[1]), abs(theirs[1])))


def quantity(text: str) -> tuple[str, float] | None:
    """(what is measured, how much in its first unit) of a number with or without a unit; None where it is neither."""
    found = _QUANTITY.fullmatch(text.strip().rstrip("."))
    if found is None:
        return None
    number, unit = float(found[1].replace(",", "")), (found[2] or "").strip().lower()
    if not unit:
        return "", number
    known = _UNITS.get(unit)
    return (known[0], number * known[1]) if known else None


def used(tool: str, given: str) -> str:
    """What a verifier's tool says."""
    tools: Mapping[str, Callable[[str], str]] = {"calculator": calculator, "convert": _converted}
    try:
        return tools[tool](given)
    except (ToolError, ValueError, KeyError) as error:
        return f"error: {error}"


def _converted(given: str) -> str:
    what, _, unit = given.partition(" to ")
    found, target = quantity(what), _UNITS.get(unit.strip().lower())
    if found is None or target is None or found[0] != target[0]:
        raise ValueError(f"{given!r} is no conversion I know; such as `3 km to m`")
    return f"{found[1] / target[1]:.10g} {unit.strip()}"


def _score(right: bool, *, by_rule: bool = False, by_verifier: bool = False, undecided: bool = False) -> Score:
    parts = {
        "correct": float(right),
        "by_rule": float(by_rule),
        "by_verifier": float(by_verifier),
        "undecided": float(undecided),
    }
    return Score(float(right), parts, success=right)
