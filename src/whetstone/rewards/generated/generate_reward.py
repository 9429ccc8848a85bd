"""Reward generation by a model (Text2Reward): code is proposed, checked and tested on labeled episodes.

The model receives the objections and revises the code until it separates success from failure well enough.

    task and traces, as text → code → allowed? → agrees with its reason? → runs in the sandbox, finite, deterministic
    → correlates with success? → further checks, such as an audit → a file for a person to read

Note: Such code is never used unread. The result is a file; name it in a recipe only after a person has read it.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import mannwhitneyu

from whetstone.errors import RecipeError
from whetstone.rewards.generated.code_reward import CodeResult, build_trace, run_reward
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
`outcome`), `observations` (texts), `reward` (a number or None)), `ended` (the end reason), `final` (the result of
the environment) and `answer` (the final answer, or None). Use plain Python and `math` and `re`; no imports, no other
names, no `while`. Pay for progress and success; do not pay for giving up, for length, or for calling tools as such."""
_ALLOWED_CALLS = frozenset({
    "abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min",
    "range", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip",
})  # fmt: skip
_MODULES = frozenset({"math", "re"})
_TRACE_KEYS = ("prompt", "turns", "ended", "final", "answer")
_CRITIC = """Read the task, the code of a reward and the reason of its author. Is the code free of contradictions: does
it agree with the reason, and does every rule in it pay for progress on the task?"""
_ANALYZER = """This code must pay successful episodes more than failed ones, and does not. Compare the two episodes:
what does the failed one do that is paid, and what does the successful one do that is not?"""
_ANALYSIS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"analysis": {"type": "string", "maxLength": 2000}},
    "required": ["analysis"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class GeneratedReward:
    """Result of reward generation: the best code and how it was tested."""

    code: str
    """Code of the best proposal; empty if no proposal was usable."""
    correlation: float
    """Rank-biserial correlation of the code's values with success, from −1 to 1; NaN without usable code."""
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
    template: str | None = None,
    check: Callable[[str], Awaitable[str]] | None = None,
    run: Callable[[str, Trajectory, Task], Awaitable[CodeResult]] = run_reward,
) -> GeneratedReward:
    """Let a model write the code of a reward, and revise it until its values correlate with success.

    The judge has three roles: it writes the code, it compares the code with its reason (critic), and it compares a
    failed episode with a successful one if the reward confuses them (trajectory analyzer).

    Args:
        judge: Model that writes the code.
        description: Description of the task.
        labeled: Tuples (trajectory, task, whether it succeeded); both outcomes must occur.
        min_correlation: Minimum rank-biserial correlation with success.
        rounds: Maximum number of proposals.
        template: Code in which the model may change only the numbers, the parameters of the reward; None: any code.
        check: Further check of code that passes all others; returns an objection, or an empty text.
        run: Function that runs code on one episode; default: in the sandbox.

    Raises:
        ValueError: If all episodes have the same outcome.
        RecipeError: If the template is not allowed as a reward.
        InfrastructureError: If the judge or the sandbox fails.

    Source: Text2Reward 2023, arXiv:2309.11489; Auto MC-Reward 2023, arXiv:2312.09238 (designer, critic, analyzer);
    Language to Rewards 2023, arXiv:2306.08647 (`template`).
    """
    if len({success for _, _, success in labeled}) < 2:
        raise ValueError("labeled episodes must include some that succeeded and some that failed")
    if template is not None and (reason := rejection_reason(template)):
        raise RecipeError(f"template: {reason}")
    best, code = GeneratedReward("", math.nan, False, 0, ()), ""
    objections: list[str] = []
    examples = "\n".join(_example(*each) for each in labeled[:4])
    for number in range(1, rounds + 1):
        material = {"task": description, "examples": examples}
        if template is not None:
            material["template, of which only numbers may change"] = template
        if objections:
            material |= {"your last code": code, "objection to it": objections[-1]}
        proposal = await judge.answer(Question(_ASK, material, SHAPE))
        code, correlation = str(proposal["code"]), math.nan
        objection = rejection_reason(code)
        if not objection and template is not None and _structure(code) != _structure(template):
            objection = "it differs from the template in more than its numbers"
        objection = objection or await _contradiction(judge, description, proposal)
        if not objection:
            values, objection = await _test_code(code, labeled, run)
            if values:
                correlation = rank_correlation(values, [ok for _, _, ok in labeled])
            if not objection and correlation < min_correlation:
                objection = (
                    f"its values go with success at {correlation:.2f}, less than {min_correlation:.2f}: "
                    f"{_confusions(labeled)}; {await _analyze(judge, code, values, labeled)}"
                )
        if not objection and check is not None:
            objection = await check(code)
        objections.append(objection)
        if not math.isnan(correlation) and not correlation <= best.correlation:
            best = GeneratedReward(code, correlation, not objection, number, tuple(objections))
        if not objection:
            return GeneratedReward(code, correlation, True, number, tuple(objections))
    return GeneratedReward(best.code, best.correlation, False, rounds, tuple(objections))


def rank_correlation(values: Sequence[float], succeeded: Sequence[bool]) -> float:
    """Return the rank-biserial correlation: P(a success has more than a failure) − P(it has less).

    Unlike Spearman's coefficient, it is 1 for every reward that separates the two, whatever their fractions.

    Args:
        values: Value of each episode.
        succeeded: Whether each episode succeeded; both outcomes must occur.
    """
    good = [value for value, ok in zip(values, succeeded, strict=True) if ok]
    bad = [value for value, ok in zip(values, succeeded, strict=True) if not ok]
    return float(2 * mannwhitneyu(good, bad).statistic / (len(good) * len(bad)) - 1)


async def _contradiction(judge: Judge, description: str, proposal: Mapping[str, Any]) -> str:
    """Return why the critic rejects code that contradicts its reason; empty if it does not."""
    material = {"task": description, "reason": str(proposal["reason"]), "code": str(proposal["code"])}
    verdict = await judge.answer(Question(_CRITIC, material))
    return "" if verdict["met"] else f"it contradicts its reason: {verdict['reason']}"


async def _analyze(
    judge: Judge, code: str, values: Sequence[float], labeled: Sequence[tuple[Trajectory, Task, bool]]
) -> str:
    """Return the judge's comparison of the failure with the highest and the success with the lowest value."""
    ranked = sorted(zip(values, range(len(labeled)), strict=True))
    failed = next(k for _, k in reversed(ranked) if not labeled[k][2])
    succeeded = next(k for _, k in ranked if labeled[k][2])
    material = {"code": code, "failed": _example(*labeled[failed]), "successful": _example(*labeled[succeeded])}
    return str((await judge.answer(Question(_ANALYZER, material, _ANALYSIS)))["analysis"])


def _example(trajectory: Trajectory, task: Task, succeeded: bool) -> str:
    return json.dumps({"success": succeeded, **build_trace(trajectory, task)}, default=str)[:1500]


def rejection_reason(code: str) -> str:
    """Return why generated code is not allowed as a reward; empty if it is allowed.

    Allowed is one function `reward(trace)` without imports, `while`, private attributes and unknown names, which reads
    only the keys of a trace. The sandbox protects the machine; this check keeps the code readable for a person.
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
    known |= {node.name for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function}
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
        key = _read_key(node)
        if key is not None and key not in _TRACE_KEYS:
            return f"line {node.lineno}: a trace has no `{key}`, only {', '.join(_TRACE_KEYS)}"  # type: ignore[attr-defined]
    return ""


def _structure(code: str) -> str:
    """Return the syntax tree of code without its numbers, signs of numbers included."""

    class Blank(ast.NodeTransformer):
        def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
            operand = self.visit(node.operand)
            return operand if isinstance(node.op, ast.USub) and isinstance(operand, ast.Constant) else node

        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
            return ast.Constant(0) if is_number else node

    return ast.dump(Blank().visit(ast.parse(code)))


def _read_key(node: ast.AST) -> str | None:
    """Return the key of an expression `trace["key"]` or `trace.get("key")`; None for other expressions."""
    match node:
        case ast.Subscript(value=ast.Name(id="trace"), slice=ast.Constant(value=str(key))):
            return key
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="trace"), attr="get"), args=[ast.Constant(value=str(key)), *_]
        ):
            return key
    return None


async def _test_code(
    code: str,
    labeled: Sequence[tuple[Trajectory, Task, bool]],
    run: Callable[[str, Trajectory, Task], Awaitable[CodeResult]],
) -> tuple[list[float], str]:
    """Run code twice on each labeled episode; return (value of each episode, objection).

    There are no values if the code fails or its values differ.
    """
    values = []
    for trajectory, task, _ in labeled:
        first = await run(code, trajectory, task)
        if first.error:
            return [], f"on an episode that ended by {trajectory.ended} it fails: {first.error}"
        if (await run(code, trajectory, task)).value != first.value:
            return [], "it contradicts itself: the same episode has another value when it is scored again"
        values.append(first.value)
    return values, "it returns the same value for every episode" if len(set(values)) < 2 else ""


def _confusions(labeled: Sequence[tuple[Trajectory, Task, bool]]) -> str:
    ended = {str(t.ended) for t, _, ok in labeled if not ok}
    return f"failures ended by {', '.join(sorted(ended))}"
