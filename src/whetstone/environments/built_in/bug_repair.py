"""Bug repair in a small generated repository: read, run the tests, edit; hidden tests determine the reward.

A repository has a few functions of a library of correct ones. One was broken by a change to its syntax tree: a flipped
operator, a loosened comparison, a number off by one, a lost default or branch. A change is used only if a hidden test
detects it.

Note:
    The hidden tests must not run in the agent's folder, nor in the process of its code; otherwise files that it left,
    or stack frames that it reads, could manipulate them. The code runs in a separate session, which returns the value
    of each call; this module compares the values.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from random import Random
from typing import Any

from whetstone.environments.built_in.graded_workspace import WorkspaceVerdict
from whetstone.environments.built_in.scripted_tasks import Scripted, script_call, script_text
from whetstone.sandbox import Ending, shared_sandbox
from whetstone.sandbox.guest_call import call_in_guest, read_literal, tuples_to_lists
from whetstone.trajectory import Task

_ARGUMENTS: dict[str, list[list[Any]]] = {
    "clamp": [[5, 0, 3], [-2, 0, 3], [2, 0, 3], [0, 0, 3], [3, 0, 3], [1, 1, 1]],
    "mean": [[[1, 2, 3]], [[]], [[4]], [[2, 2, 5, 7]], [[-1, 1]]],
    "run_lengths": [["aab"], [""], ["abc"], ["zzzz"], ["abba"]],
    "moving_sum": [[[1, 2, 3]], [[1, 2, 3, 4], 3], [[5], 1], [[1], 2], [[4, 4]]],
    "merged": [[[[1, 3], [2, 5]]], [[[1, 2], [2, 3]]], [[[1, 2], [4, 5]]], [[[1, 9], [2, 3]]], [[]]],
    "caesar": [["abc"], ["xyz", 3], ["a b", 1], ["zoo", 0], ["hello", 25]],
    "second_largest": [[[1, 2, 3]], [[5]], [[2, 2, 1]], [[9, 8]], [[]]],
    "is_leap": [[2000], [1900], [2024], [2023], [2100]],
}


_SECONDS = 3.0
"""Timeout of one call of the repaired code in seconds."""
_VISIBLE = """import sys

sys.tracebacklimit = 0  # a path would be another one each time
try:
    from library import *
except SyntaxError as error:
    sys.exit(f"library.py, line {error.lineno}: {error.msg}")
"""


class HiddenTests(WorkspaceVerdict):
    """Component without tools that runs the hidden tests of the task at the end.

    The tests run in a separate sandbox. List the component after the tool whose folder contains the repository.

    Args:
        sandbox: `auto`: the strongest isolation available here; or one by name. `unsafe` must be set explicitly.
    """

    def __init__(self, *, sandbox: str = "auto") -> None:
        super().__init__()
        self._pool = shared_sandbox(sandbox)

    async def verdict(self) -> Mapping[str, Any]:
        """Return the number of hidden tests that pass, and the score.

        The score is the fraction of initially failing tests that pass now, minus the fraction of initially passing
        tests that fail now.
        """
        session, task = self.session_and_task
        tests, failing = task.private["tests"], frozenset(task.private["failing"])
        outcome = await session.read(task.private["module"])
        code = outcome.data if outcome.ending is Ending.OK else None
        passed = frozenset() if code is None else await self._passed_tests(code.decode(errors="replace"), tests)
        mended = len(passed & failing) / len(failing)
        broken = len(set(range(len(tests))) - failing - passed) / max(1, len(tests) - len(failing))
        done = len(passed) == len(tests)
        return {"success": done, "score": max(0.0, mended - broken), "passed": len(passed)}

    async def _passed_tests(self, code: str, tests: Sequence[Any]) -> frozenset[int]:
        """Return the indices of the passed tests.

        Calls run in the sandbox, comparisons in this process.
        """
        session = self._pool.session(seed=0)
        try:
            loaded = await session.python(f"{code}\nNone", wall_seconds=_SECONDS)
            if loaded.ending is not Ending.OK or loaded.restarted:
                return frozenset()
            passed = []
            for place, (name, arguments, wanted) in enumerate(tests):
                came = await call_in_guest(session, name, repr((tuple(arguments), {})), seconds=_SECONDS)
                if came.kind == "value" and _same(tuples_to_lists(read_literal(came.text)), wanted):
                    passed.append(place)
            return frozenset(passed)
        finally:
            session.close()


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in JSON.

    An integer may equal a float, but not a boolean.
    """
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


class BugRepairTasks(Scripted):
    """Task source of repositories with one bug.

    They have 2, 4 and 6 functions at levels 1, 2 and 3.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "bug_repair"

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        while True:
            names = draw.sample(list(_ARGUMENTS), 2 * level)
            name = draw.choice(names)
            broken = broken_version(draw, _functions()[name])
            cases = [[name, arguments, _run(_functions()[name], name, arguments)] for arguments in _ARGUMENTS[name]]
            noticed = [case for case in cases if broken and not _same(_run(broken, name, case[1]), case[2])]
            if broken and noticed:
                break
        right = _functions()[name]
        tests = [
            [other, arguments, _run(_functions()[other], other, arguments)]
            for other in names
            for arguments in _ARGUMENTS[other]
        ]
        source = "\n\n".join(broken if other == name else _functions()[other] for other in names) + "\n"
        # the visible tests include a failing one, but not all tests
        visible_cases = [case for case in tests if case[0] != name][:2] + sorted(cases, key=lambda c: c not in noticed)[
            :3
        ]
        visible = "\n".join(_assertion(*case) for case in visible_cases)
        private = {
            "files": {"library.py": source, "test_library.py": f"{_VISIBLE}{visible}\nprint('all tests pass')\n"},
            "module": "library.py",
            "tests": tests,
            "failing": [place for place, case in enumerate(tests) if case in noticed],
            "script": [
                script_call("shell", command="python3 test_library.py"),
                script_call("view", path="library.py"),
                script_call("str_replace", path="library.py", old=broken, new=right),
                script_text("done"),
            ],
        }
        prompt = f"library.py has a bug in {name}; its docstring is right. test_library.py shows some cases. Repair it."
        return Task("", prompt, private, {"kind": f"{len(names)} functions"})


def _assertion(name: str, arguments: Sequence[Any], wanted: Any) -> str:
    """Return an assertion of the visible test file for one call and its result."""
    expression = f"{name}({', '.join(map(repr, arguments))})"
    return f"assert {expression} == {wanted!r}, {f'{expression} should be {wanted!r}'!r}"


@functools.cache
def _functions() -> dict[str, str]:
    """Return the source of every function of the library, by name."""
    tree = ast.parse((files(__package__) / "bug_repair_library.txt").read_text("utf-8"))
    return {node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def broken_version(draw: Random, source: str) -> str | None:
    """Return the source of a function with a random bug; None if there is no change."""
    tree = ast.parse(source)
    places = [node for node in ast.walk(tree) if _find_change(node, Random(0)) is not None]
    if not places:
        return None
    change = _find_change(draw.choice(places), draw)
    assert change is not None
    change()
    return ast.unparse(tree)


def _find_change(node: ast.AST, draw: Random) -> Any:
    """Return a function that breaks a node of a syntax tree; None without a change."""
    if isinstance(node, ast.Compare):
        flipped = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
        kind = flipped.get(type(node.ops[0]))
        return None if kind is None else lambda: node.ops.__setitem__(0, kind())
    if isinstance(node, ast.BinOp):
        other = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Div: ast.Mult, ast.Mod: ast.FloorDiv}.get(type(node.op))
        return None if other is None else lambda: setattr(node, "op", other())
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return lambda: setattr(node, "value", int(node.value) + draw.choice((-1, 1)))
    if isinstance(node, ast.If) and node.orelse:
        return lambda: setattr(node, "body", node.orelse)
    return None


def _run(source: str, name: str, arguments: list[Any]) -> Any:
    """Return the result of a library function, broken or not, as a JSON value.

    An exception is a text with its type. No change of a function causes an endless loop.
    """
    names: dict[str, Any] = {}
    exec(compile(source, "library.py", "exec"), names)
    try:
        return json.loads(json.dumps(names[name](*json.loads(json.dumps(arguments)))))
    except Exception as error:
        return f"raises {type(error).__name__}"
