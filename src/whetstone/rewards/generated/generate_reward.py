"""Reward generation by a model (Text2Reward): code is proposed, checked and tested on labeled episodes.

The model receives the objections and revises the code until it separates success from failure well enough.

    task and traces, as text → code → allowed? → runs in the sandbox, finite, deterministic → correlates with success? →
    a file for a person to read

Note: Such code is never used unread. The result is a file; name it in a recipe only after a person has read it.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import spearmanr

from whetstone.rewards.generated.code_reward import build_trace, run_reward
from whetstone.rewards.judges import Judge, Question
from whetstone.trajectory import Task, Trajectory

SHAPE: Mapping[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string", "maxLength": 4000}, "code": {"type": "string", "maxLength": 20000}},
    "required": ["reason", "code"],
    "additionalProperties": False,
}
"""JSON Schema of the model's answer: a reason and the code."""
_ASK = """Write a reward: one Python function `def reward(trace):` that returns a float, larger for better episodes.
`trace` is a mapping: `prompt` (text), `turns` (a list of mappings with `text`, `calls` (each `name`, `arguments`,
`outcome`), `observations` (texts), `reward` (a number or None)), `ended` (how it ended), `final` (what the environment
said at the end) and `answer` (what was answered, or None). Use plain Python and `math` and `re`; no imports, no other
names, no `while`. Pay for progress and success; do not pay for giving up, for length, or for calling tools as such."""
_ALLOWED_CALLS = frozenset({
    "abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min",
    "range", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip",
})  # fmt: skip
_MODULES = frozenset({"math", "re"})


@dataclass(frozen=True, slots=True)
class GeneratedReward:
    """Result of reward generation: the best code and how it was tested."""

    code: str
    """Code of the best proposal; empty if no proposal was usable."""
    correlation: float
    """Spearman correlation of the code's values with success, from −1 to 1; NaN without usable code."""
    accepted: bool
    """Whether the correlation reaches the minimum."""
    rounds: int
    """Number of rounds until this result."""
    objections: tuple[str, ...]
    """Objection to each proposal, in order; the last is empty if the proposal was accepted."""


async def write_reward(
    judge: Judge,
    description: str,
    labeled: Sequence[tuple[Trajectory, Task, bool]],
    *,
    min_correlation: float = 0.7,
    rounds: int = 4,
    sandbox: str = "auto",
) -> GeneratedReward:
    """Let a model write the code of a reward, and revise it until its values correlate with success.

    Args:
        judge: Model that writes the code.
        description: Description of the task.
        labeled: Tuples (trajectory, task, whether it succeeded); both outcomes must occur.
        min_correlation: Minimum Spearman correlation with success.
        rounds: Maximum number of proposals.
        sandbox: Sandbox, see the tool `python`.

    Raises:
        ValueError: If all episodes have the same outcome.
        InfrastructureError: If the judge or the sandbox fails.

    Source: Text2Reward 2023, arXiv:2309.11489; Auto MC-Reward 2023, arXiv:2312.09238 (designer, critic, analyser).
    """
    if len({success for _, _, success in labeled}) < 2:
        raise ValueError("labeled episodes must include some that succeeded and some that failed")
    best, code = GeneratedReward("", math.nan, False, 0, ()), ""
    objections: list[str] = []
    examples = "\n".join(json.dumps({"success": ok, **build_trace(t, task)})[:1500] for t, task, ok in labeled[:4])
    for number in range(1, rounds + 1):
        material = {"task": description, "examples": examples}
        if objections:
            material |= {"your last code": code, "what was wrong with it": objections[-1]}
        code = str((await judge.answer(Question(_ASK, material, SHAPE)))["code"])
        objection = rejection_reason(code)
        correlation = math.nan
        if not objection:
            correlation, objection = await _test_code(code, labeled, sandbox)
        if not objection and correlation < min_correlation:
            objection = (
                f"its values go with success at {correlation:.2f}, less than {min_correlation:.2f}: "
                f"{_confusions(labeled)}"
            )
        objections.append(objection)
        if not math.isnan(correlation) and not correlation <= best.correlation:
            best = GeneratedReward(code, correlation, not objection, number, tuple(objections))
        if not objection:
            return GeneratedReward(code, correlation, True, number, tuple(objections))
    return GeneratedReward(best.code, best.correlation, False, rounds, tuple(objections))


def rejection_reason(code: str) -> str:
    """Return why generated code is not allowed as a reward; empty if it is allowed.

    Allowed is one function `reward(trace)` without imports, `while`, private attributes and unknown names. The sandbox
    protects the machine; this check keeps the code readable for a person.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"it does not parse: {error}"
    if not (len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef) and tree.body[0].name == "reward"):
        return "it is to be one function, `def reward(trace):`, and nothing else"
    function = tree.body[0]
    arguments = function.args
    if [one.arg for one in arguments.args] != ["trace"] or arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return "it takes one argument, `trace`"
    known = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known |= {argument.arg for node in ast.walk(function) if isinstance(node, ast.arguments) for argument in node.args}
    for node in ast.walk(function):
        if isinstance(
            node, ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal | ast.ClassDef | ast.AsyncFunctionDef
        ):
            return f"line {node.lineno}: {type(node).__name__} is not allowed"
        if isinstance(node, ast.While):
            return f"line {node.lineno}: a `while` may never end"
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            return f"line {node.lineno}: `.{node.attr}` is not allowed"
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            free = node.id not in known and node.id not in _ALLOWED_CALLS | _MODULES | {"True", "False", "None"}
            if free:
                return f"line {node.lineno}: there is no `{node.id}`"
    return ""


async def _test_code(code: str, labeled: Sequence[tuple[Trajectory, Task, bool]], sandbox: str) -> tuple[float, str]:
    """Run code twice on each labeled episode; return (Spearman correlation with success, objection)."""
    values = []
    for trajectory, task, _ in labeled:
        twice = [await run_reward(code, trajectory, task, sandbox=sandbox) for _ in range(2)]
        for one in twice:
            if one.error:
                return math.nan, f"on an episode that ended by {trajectory.ended} it fails: {one.error}"
        if twice[0].value != twice[1].value:
            return math.nan, "it says another number when it is asked again"
        values.append(twice[0].value)
    if len(set(values)) < 2:
        return 0.0, "it says the same of every episode"
    return float(spearmanr(values, [ok for _, _, ok in labeled]).statistic), ""


def _confusions(labeled: Sequence[tuple[Trajectory, Task, bool]]) -> str:
    ended = {str(t.ended) for t, _, ok in labeled if not ok}
    return f"failures ended by {', '.join(sorted(ended))}"
