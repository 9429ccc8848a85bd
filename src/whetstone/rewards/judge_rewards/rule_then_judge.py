"""Rule-then-judge reward: rules decide first, then a verifier model with a calculator and unit conversion.

The score components `by_rule` and `by_verifier` log the deciding method.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from whetstone.errors import InfrastructureError, ToolError
from whetstone.rewards.answers.exact_match import same_answer
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.judge_rewards.judge_input import without_thoughts
from whetstone.rewards.judges import Judge, Question
from whetstone.tools.arithmetic_tools import calculator
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
    """Returns 1 if the final answer equals `task.private["answer"]`, by rules or by a verifier with tools, else 0.

    Rules compare texts, numbers to a relative tolerance, and quantities in units. They abstain if one of the two is not
    a known quantity. Then the verifier decides; it may use a calculator and a unit converter for a few steps. Without a
    verifier, answers that rules cannot decide are wrong, and counted as `undecided`.

    The verifier's tools compute with numbers and units but not with formulas; `symbolic` can compare formulas.

    Args:
        judge: Verifier model; null: only rules decide.
        tolerance: Relative tolerance of numbers.
        steps: Maximum number of tool calls of the verifier.

    Source: the order of CoSineVerifier 2026 (rules first, then a verifier with tools), without its computer algebra and
    without its training; steps as in Themis, arXiv:2310.01045 (thought, call, observation, rationale, score).
    """

    def __init__(self, *, judge: Judge | None = None, tolerance: float = 1e-4, steps: int = 4) -> None:
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self.judge, self.tolerance, self.steps = judge, tolerance, steps

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Compare the final answer of a trajectory with the task's answer.

        Raises:
            InfrastructureError: If the verifier returns no valid answer, or does not decide.
        """
        answer, wanted = final_answer(trajectory), str(task.private["answer"])
        if answer is None:
            return _score(False, by_rule=True)
        answer = without_thoughts(answer)
        ruled = same_quantity(answer, wanted, tolerance=self.tolerance)
        if ruled is not None:
            return _score(ruled, by_rule=True)
        if self.judge is None:
            return _score(False, undecided=True)
        return _score(await self._ask_verifier(self.judge, task, answer, wanted), by_verifier=True)

    async def _ask_verifier(self, judge: Judge, task: Task, answer: str, wanted: str) -> bool:
        observed: list[str] = []
        for _ in range(self.steps + 1):
            material = {"question": task.prompt, "answer": answer, "reference": wanted}
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
            observed.append(
                f"{step['tool']}({step['input']}) = {run_verifier_tool(str(step['tool']), str(step['input']))}"
            )
        raise InfrastructureError(f"the verifier did not decide within {self.steps} tool calls; increase steps")

    async def close(self) -> None:
        """Close the verifier, if there is one."""
        if self.judge is not None:
            await self.judge.close()


def same_quantity(answer: str, wanted: str, *, tolerance: float = 1e-4) -> bool | None:
    """Return whether an answer equals the wanted one as text, number or quantity.

    Returns None if rules cannot decide.

    >>> same_quantity("1.5 km", "1500 m"), same_quantity("2 kg", "2 m"), same_quantity("blue", "azure")
    (True, False, None)
    """
    if same_answer(answer, wanted):
        return True
    own, reference = parse_quantity(answer), parse_quantity(wanted)
    if own is None or reference is None:
        return None
    if own[0] != reference[0]:
        return None if "" in (own[0], reference[0]) else False
    return bool(abs(own[1] - reference[1]) <= tolerance * max(abs(own[1]), abs(reference[1])))


def parse_quantity(text: str) -> tuple[str, float] | None:
    """Parse a number with an optional unit as (dimension, amount in the base unit).

    Returns None if the text is not a quantity. The dimension is empty without a unit.
    """
    match = _QUANTITY.fullmatch(text.strip().rstrip("."))
    if match is None:
        return None
    number, unit = float(match[1].replace(",", "")), (match[2] or "").strip().lower()
    if not unit:
        return "", number
    known = _UNITS.get(unit)
    return (known[0], number * known[1]) if known else None


def run_verifier_tool(tool: str, argument: str) -> str:
    """Run a tool of the verifier, `calculator` or `convert`, and return its result or an error as text."""
    tools: Mapping[str, Callable[[str], str]] = {"calculator": calculator, "convert": _converted}
    try:
        return tools[tool](argument)
    except (ToolError, ValueError, KeyError) as error:
        return f"error: {error}"


def _converted(argument: str) -> str:
    what, _, unit = argument.partition(" to ")
    source, target = parse_quantity(what), _UNITS.get(unit.strip().lower())
    if source is None or target is None or source[0] != target[0]:
        raise ValueError(f"{argument!r} is no conversion I know; such as `3 km to m`")
    return f"{source[1] / target[1]:.10g} {unit.strip()}"


def _score(right: bool, *, by_rule: bool = False, by_verifier: bool = False, undecided: bool = False) -> Score:
    parts = {
        "correct": float(right),
        "by_rule": float(by_rule),
        "by_verifier": float(by_verifier),
        "undecided": float(undecided),
    }
    return Score(float(right), parts, success=right)
