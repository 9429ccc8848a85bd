"""Bug repair in a small generated repository: look, run the tests, edit; hidden tests judge.

A repository is a few functions of a library of correct ones, one of which was broken by a change to its syntax tree:
an operator flipped, a comparison loosened, a number off by one, a default or a branch lost. A change is kept only if a
hidden test notices it.

Easy to get wrong: the hidden tests must not run where the agent has been, nor where its code is, or they are fooled by
what it left there or looks up in a frame. The code lives in a session of its own, and is asked call by call what it
gives; who compares is here.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from whetstone.environments.native.beside_folder import BesideFolder
from whetstone.environments.native.scripted import Scripted, call, say
from whetstone.sandbox import Ending, shared_sandbox
from whetstone.sandbox.calling import called_there, listed, read_literal
from whetstone.trajectory import Task

_LIBRARY = '''
def clamp(value, low, high):
    """The value, or the bound it exceeds."""
    if value < low:
        return low
    if value > high:
        return high
    return value

def mean(values):
    """The mean; 0 of nothing."""
    total = 0
    for value in values:
        total = total + value
    if len(values) == 0:
        return 0
    return total / len(values)

def run_lengths(text):
    """Runs of the same letter, as pairs of letter and length."""
    runs = []
    for letter in text:
        if runs and runs[-1][0] == letter:
            runs[-1][1] = runs[-1][1] + 1
        else:
            runs.append([letter, 1])
    return runs

def moving_sum(values, width=2):
    """The sums of `width` neighbours."""
    sums = []
    for start in range(len(values) - width + 1):
        sums.append(sum(values[start:start + width]))
    return sums

def merged(intervals):
    """Intervals, sorted, those that touch made one."""
    done = []
    for start, end in sorted(intervals):
        if done and start <= done[-1][1]:
            done[-1][1] = max(done[-1][1], end)
        else:
            done.append([start, end])
    return done

def caesar(text, shift=3):
    """Small letters shifted along the alphabet."""
    shifted = []
    for letter in text:
        if "a" <= letter <= "z":
            shifted.append(chr((ord(letter) - 97 + shift) % 26 + 97))
        else:
            shifted.append(letter)
    return "".join(shifted)

def second_largest(values):
    """The second largest of different values; None where there is none."""
    ordered = sorted(set(values))
    if len(ordered) < 2:
        return None
    return ordered[-2]

def is_leap(year):
    """Whether a year has 366 days."""
    if year % 400 == 0:
        return True
    if year % 100 == 0:
        return False
    return year % 4 == 0
'''
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
"""One call of the repaired code may take."""
_VISIBLE = """import sys

sys.tracebacklimit = 0  # a path would be another one each time
try:
    from library import *
except SyntaxError as error:
    sys.exit(f"library.py, line {error.lineno}: {error.msg}")
"""


class HiddenTests(BesideFolder):
    """No tools: says at the end whether the hidden tests of the task pass, in a sandbox of their own.

    Named behind the tool whose folder holds the repository.

    Args:
        sandbox: As of `Python`.
    """

    def __init__(self, *, sandbox: str = "auto") -> None:
        super().__init__()
        self._pool = shared_sandbox(sandbox)

    async def verdict(self) -> Mapping[str, Any]:
        """How many of the hidden tests pass. The score is the share of those that failed at first and pass now, less
        the share of those that passed and fail now."""
        session, task = self.there
        tests, failing = task.private["tests"], frozenset(task.private["failing"])
        outcome = await session.read(task.private["module"])
        code = outcome.data if outcome.ending is Ending.OK else None
        passed = frozenset() if code is None else await self._passed(code.decode(errors="replace"), tests)
        mended = len(passed & failing) / len(failing)
        broken = len(set(range(len(tests))) - failing - passed) / max(1, len(tests) - len(failing))
        done = len(passed) == len(tests)
        return {"success": done, "score": max(0.0, mended - broken), "passed": len(passed)}

    async def _passed(self, code: str, tests: Sequence[Any]) -> frozenset[int]:
        """The places of the tests that code passes, each called where the code lives and compared here."""
        session = self._pool.session(seed=0)
        try:
            loaded = await session.python(f"{code}\nNone", wall_seconds=_SECONDS)
            if loaded.ending is not Ending.OK or loaded.restarted:
                return frozenset()
            found = []
            for place, (name, arguments, wanted) in enumerate(tests):
                came = await called_there(session, name, repr((tuple(arguments), {})), seconds=_SECONDS)
                if came.kind == "value" and _same(listed(read_literal(came.said)), wanted):
                    found.append(place)
            return frozenset(found)
        finally:
            session.close()


def _same(one: Any, other: Any) -> bool:
    """Whether two values are written alike in JSON, but that a whole number may be a decimal one."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


class BugRepairTasks(Scripted):
    """Repositories of two, four and six functions with one bug.

    Args:
        seed: As of `Generated`.
        levels: As of `Generated`.
    """

    name = "bug_repair"

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
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
        # one that fails is among those that are shown, and some are not
        shown = [case for case in tests if case[0] != name][:2] + sorted(cases, key=lambda c: c not in noticed)[:3]
        visible = "\n".join(_assertion(*case) for case in shown)
        private = {
            "files": {"library.py": source, "test_library.py": f"{_VISIBLE}{visible}\nprint('all tests pass')\n"},
            "module": "library.py",
            "tests": tests,
            "failing": [place for place, case in enumerate(tests) if case in noticed],
            "script": [
                call("shell", command="python3 test_library.py"),
                call("view", path="library.py"),
                call("str_replace", path="library.py", old=broken, new=right),
                say("done"),
            ],
        }
        prompt = f"library.py has a bug in {name}; its docstring is right. test_library.py shows some cases. Repair it."
        return Task("", prompt, private, {"kind": f"{len(names)} functions"})


def _assertion(name: str, arguments: Sequence[Any], wanted: Any) -> str:
    """A line of a test."""
    asked = f"{name}({', '.join(map(repr, arguments))})"
    return f"assert {asked} == {wanted!r}, {f'{asked} should be {wanted!r}'!r}"


@functools.cache
def _functions() -> dict[str, str]:
    """Name → source, of every function of the library."""
    tree = ast.parse(_LIBRARY)
    return {node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def broken_version(draw: Random, source: str) -> str | None:
    """The function with one thing changed; None where nothing could be."""
    tree = ast.parse(source)
    places = [node for node in ast.walk(tree) if _change_of(node, Random(0)) is not None]
    if not places:
        return None
    change = _change_of(draw.choice(places), draw)
    assert change is not None
    change()
    return ast.unparse(tree)


def _change_of(node: ast.AST, draw: Random) -> Any:
    """What would break this node; None where nothing does."""
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
    """What our own function gives, broken or not, as JSON has it; it has no loop that would not end."""
    names: dict[str, Any] = {}
    exec(compile(source, "library.py", "exec"), names)
    try:
        return json.loads(json.dumps(names[name](*json.loads(json.dumps(arguments)))))
    except Exception as error:
        return f"raises {type(error).__name__}"
