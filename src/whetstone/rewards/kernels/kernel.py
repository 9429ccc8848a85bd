"""Static check of kernel code by its syntax tree: a launched kernel, and no forbidden calls.

A solution can satisfy pure test rewards by calling the library's own operation, and a text pattern by a comment.
"""

from __future__ import annotations

import ast

from whetstone.rewards.environment_state.extract_code import extract_code
from whetstone.trajectory import Score, Task, Trajectory


async def kernel(
    trajectory: Trajectory,
    task: Task,
    *,
    decorator: str | None = "triton.jit",
    forbidden: list[str] | None = None,
) -> Score:
    """Return 1 if the final code launches a kernel and makes no forbidden call, else 0.

    Use it with `times` in `composed`, in addition to a test reward.

    Args:
        decorator: Decorator of a function that must be launched with a grid, `f[grid](…)`, reachable from the task's
            `entry_point`; null: not required.
        forbidden: Calls that would do the work instead, such as `torch.softmax`, `sorted`, `numpy.*`, under any import
            name.

    Source: AutoTriton 2025, arXiv:2507.05687.
    """
    code = extract_code(trajectory)
    wrong = (
        "no code"
        if code is None
        else broken_rule(code, entry=task.private.get("entry_point"), decorator=decorator, forbidden=forbidden or [])
    )
    return Score(float(not wrong), {"rule": float(not wrong)})


def broken_rule(code: str, *, entry: str | None, decorator: str | None, forbidden: list[str]) -> str:
    """Return the rule that kernel code violates; empty if it violates none.

    Args:
        code: Code of the final answer.
        entry: Name of the function that the task calls; None: any function counts.
        decorator: Required decorator of a launched function; None: not required.
        forbidden: Forbidden calls.
    """
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
            return f"it calls {called}, which can run any code"
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
    """Return the imported and assigned names of a file with their qualified names."""
    qualified: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                qualified[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                qualified[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    plain: dict[str, ast.AST] = {}  # assignments: `s = sorted`, `t = torch.softmax`
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id not in qualified:
                    plain.setdefault(target.id, node.value)
    for _ in plain:  # a name may refer to one that is assigned later
        qualified |= {
            name: target_name
            for name, value in plain.items()
            if (target_name := _dotted(value, qualified)) not in ("", name)
        }
    return qualified


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        below = _dotted(node.value, names)
        return f"{below}.{node.attr}" if below else ""
    return ""


def _reached(functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef], entry: str | None) -> set[str]:
    """Return the names of the functions that the entry function uses directly or indirectly, including itself."""
    reached, left = set(), [entry] if entry else []
    while left:
        name = left.pop()
        if name in reached or name not in functions:
            continue
        reached.add(name)
        left += [node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)]
    return reached
