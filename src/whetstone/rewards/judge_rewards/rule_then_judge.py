"""Rule-then-judge reward: rules decide first, then a verifier model with tools: calculator, units, algebra.

The score components `by_rule` and `by_verifier` log the deciding method.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Literal

from whetstone.errors import InfrastructureError, RecipeError, ToolError
from whetstone.optional_dependencies import install_command
from whetstone.rewards.answers.exact_match import same_answer
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.judge_rewards.judge_input import without_thoughts
from whetstone.rewards.judges import Judge, Question
from whetstone.sandbox import Ending, shared_sandbox
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
VerifierTool = Literal["calculator", "convert", "algebra"]
_TOOLS: Mapping[VerifierTool, str] = {
    "calculator": "`calculator` (an expression of numbers)",
    "convert": "`convert` (such as `3 km to m`)",
    "algebra": "`algebra` (a formula to simplify, or two such as `(x+1)**2 == x**2+2*x+1` to compare)",
}
_ALGEBRA = """
import json, sympy
def simplify(text):
    sides = [sympy.sympify(side.replace("^", "**")) for side in text.split("==")]
    if len(sides) == 1:
        return str(sympy.simplify(sides[0]))
    return "equal" if all(sympy.simplify(sides[0] - side) == 0 for side in sides[1:]) else "not shown to be equal"
json.dumps(simplify(json.loads(%r)))
"""
_MAX_SCORE = 10


class Verified:
    """Returns 1 if the final answer equals `task.private["answer"]`, by rules or by a verifier with tools, else 0.

    Rules compare texts, numbers to a relative tolerance, and quantities in units. They abstain if one of the two is not
    a known quantity. Then the verifier decides; it may use its tools for a few steps. Without a verifier, answers that
    rules cannot decide are wrong, and counted as `undecided`.

    With `reference: false` the task needs no answer: the verifier judges the answer to the question, and the value is
    its score from 0 to 10, divided by 10.

    Args:
        judge: Verifier model; null: only rules decide.
        tolerance: Relative tolerance of numbers.
        steps: Maximum number of tool calls of the verifier.
        tools: Tools of the verifier: `calculator`, `convert` (units) and `algebra` (SymPy in the sandbox, needs
            Math-Verify); an empty list: the verifier has no tools.
        reference: Whether answers are compared with the task's answer.
        sandbox: Sandbox of `algebra`, see the tool `python`.

    Source: the order of CoSineVerifier 2026 (rules first, then a verifier with tools), without its training; steps and
    scores without a reference as in Themis, arXiv:2310.01045 (thought, call, observation, rationale, score).
    """

    def __init__(
        self,
        *,
        judge: Judge | None = None,
        tolerance: float = 1e-4,
        steps: int = 4,
        tools: Sequence[VerifierTool] = ("calculator", "convert"),
        reference: bool = True,
        sandbox: str = "auto",
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        if judge is None and not reference:
            raise ValueError("reference: false requires a judge, since rules compare with the task's answer")
        if "algebra" in tools and find_spec("math_verify") is None:
            raise RecipeError(f"tools: algebra needs Math-Verify: {install_command('math')}")
        self.judge, self.tolerance, self.steps = judge, tolerance, steps
        self.tools, self.reference, self.sandbox = tuple(tools), reference, sandbox

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Compare the final answer of a trajectory with the task's answer.

        Raises:
            InfrastructureError: If the verifier returns no valid answer, or does not decide.
        """
        answer = final_answer(trajectory)
        if answer is None:
            return _score(False, by_rule=True)
        answer = without_thoughts(answer)
        if not self.reference:
            assert self.judge is not None
            step = await self._ask_verifier(self.judge, {"question": task.prompt, "answer": answer})
            score = _score(step["verdict"] == "correct", by_verifier=True)
            return replace(score, value=int(step["score"]) / _MAX_SCORE)
        wanted = str(task.private["answer"])
        ruled = same_quantity(answer, wanted, tolerance=self.tolerance)
        if ruled is not None:
            return _score(ruled, by_rule=True)
        if self.judge is None:
            return _score(False, undecided=True)
        step = await self._ask_verifier(self.judge, {"question": task.prompt, "answer": answer, "reference": wanted})
        return _score(step["verdict"] == "correct", by_verifier=True)

    async def _ask_verifier(self, judge: Judge, context: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the last step of the verifier, which has its verdict and, without a reference, its score."""
        observed: list[str] = []
        use = " or ".join(_TOOLS[tool] for tool in self.tools)
        ask = "Is the answer the same as the reference?" if self.reference else "Is the answer to the question right?"
        ask += f" {f'You may use {use} first; give' if use else 'Give'} tool none and a verdict when you know."
        for _ in range(self.steps + 1):
            material = {**context, "what your tools said": "\n".join(observed)} if observed else context
            step = await judge.answer(Question(ask, material, self._shape()))
            if step["tool"] == "none":
                if step["verdict"] == "undecided":
                    break
                return step
            tool, argument = str(step["tool"]), str(step["input"])
            result = await self._compute(argument) if tool == "algebra" else run_verifier_tool(tool, argument)
            observed.append(f"{tool}({argument}) = {result}")
        raise InfrastructureError(f"the verifier did not decide within {self.steps} tool calls; increase steps")

    def _shape(self) -> Mapping[str, Any]:
        properties: dict[str, Any] = {
            "thought": {"type": "string", "maxLength": 2000},
            "tool": {"type": "string", "enum": [*self.tools, "none"]},
            "input": {"type": "string", "maxLength": 300},
            "verdict": {"type": "string", "enum": ["correct", "incorrect", "undecided"]},
        }
        if not self.reference:
            properties["score"] = {"type": "integer", "minimum": 0, "maximum": _MAX_SCORE}
        return {
            "type": "object", "properties": properties, "required": [*properties], "additionalProperties": False,
        }  # fmt: skip

    async def _compute(self, argument: str) -> str:
        """Simplify or compare formulas with SymPy in the sandbox; return the result or an error as text."""
        session = shared_sandbox(self.sandbox, preload=("math_verify",)).session()
        try:
            outcome = await session.python(_ALGEBRA % json.dumps(argument), wall_seconds=10.0)
        finally:
            session.close()
        if outcome.ending is Ending.OK and outcome.value is not None:
            return str(json.loads(outcome.value[1:-1]))
        return f"error: {(outcome.error or str(outcome.ending)).strip().splitlines()[-1][:200]}"

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
