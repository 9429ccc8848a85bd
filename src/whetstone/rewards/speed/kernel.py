"""Does an answer hold what it was asked for? Read from the code's tree: a kernel that is launched, and nothing
forbidden.

Rewards that only run tests are met by calling the library's own operation; a pattern over the text is met by a comment.
"""

from __future__ import annotations

import ast

from whetstone.rewards.worlds.solution import solution_of
from whetstone.trajectory import Score, Task, Trajectory


async def kernel(
    trajectory: Trajectory,
    task: Task,
    *,
    decorator: str | None = "triton.jit",
    forbidden: list[str] | None = None,
) -> Score:
    """1 where the final code keeps the rules, else 0. A factor of what tests say, by `times` in `composed`.

    Args:
        decorator: Some function must have it and be launched with a grid, `f[grid](…)`, reachable from the task's
            `entry_point`; null: none is asked for.
        forbidden: Calls that would do the work instead, such as `torch.softmax`, `sorted`, `numpy.*`, whatever they are
            imported as.

    Source: AutoTriton 2025, arXiv:2507.05687.
    """
    code = solution_of(trajectory)
    wrong = (
        "no code"
        if code is None
        else broken_rule(code, entry=task.private.get("entry_point"), decorator=decorator, forbidden=forbidden or [])
    )
    return Score(float(not wrong), {"rule": float(not wrong)})


def broken_rule(code: str, *, entry: str | None, decorator: str | None, forbidden: list[str]) -> str:
    """Which rule a piece of code breaks; empty for none."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return "it does not parse"
    names = _imported(tree)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(tree):
        called = _dotted(node.func, names) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and called in (
            "eval",
            "exec",
            "compile",
            "__import__",
            "getattr",
            "importlib.import_module",
        ):
            return f"it calls {called}, behind which anything may stand"
        named = _dotted(node, names) if isinstance(node, ast.Name | ast.Attribute) else ""
        for pattern in forbidden:
            if named and (named == pattern or (pattern.endswith(".*") and named.startswith(pattern[:-1]))):
                return f"it uses {named}"
    if decorator is None:
        return ""
    kernels = {
        name
        for name, node in functions.items()
        for one in node.decorator_list
        if _dotted(one.func if isinstance(one, ast.Call) else one, names) == decorator
    }
    if not kernels:
        return f"no function has @{decorator}"
    reached = _reached(functions, entry) if entry in functions else set(functions)
    for name in reached - kernels:
        for node in ast.walk(functions[name]):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Subscript)
                and _dotted(node.func.value, {}) in kernels
            ):
                return ""
    return "no kernel is launched with a grid"


def _imported(tree: ast.AST) -> dict[str, str]:
    """Names in the file → what they stand for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    plain: dict[str, ast.AST] = {}  # assignments: `s = sorted`, `t = torch.softmax`
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id not in found:
                    plain.setdefault(target.id, node.value)
    for _ in plain:  # one may stand for another that comes behind it
        found |= {name: said for name, value in plain.items() if (said := _dotted(value, found)) not in ("", name)}
    return found


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        below = _dotted(node.value, names)
        return f"{below}.{node.attr}" if below else ""
    return ""


def _reached(functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef], entry: str | None) -> set[str]:
    """Functions that the entry uses, itself among them."""
    reached, left = set(), [entry] if entry else []
    while left:
        name = left.pop()
        if name in reached or name not in functions:
            continue
        reached.add(name)
        left += [node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)]
    return reached
