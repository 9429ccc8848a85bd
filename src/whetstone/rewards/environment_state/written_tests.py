"""Reward for unit tests that the agent writes: they pass with the right code, run its statements and detect wrong code.

Tests and tested code run in separate sandboxes, as for `unit_tests`, so tests only see the results of their calls. Each
run has a new sandbox, so that a test cannot count its runs.

Source: Takerngsaksiri et al. 2024, "TDD Without Tears", arXiv:2401.07576, for syntax, execution and coverage as a
reward; Steenhoek et al. 2023, arXiv:2310.02368, for static metrics of tests.
"""

from __future__ import annotations

import ast
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from whetstone.bounded_types import Count, NotNegative, Positive, Share
from whetstone.errors import TaskError
from whetstone.python_syntax import parse_syntax
from whetstone.rewards.environment_state.code_mutations import REACHED, create_mutants, record_statements
from whetstone.rewards.environment_state.extract_code import extract_code
from whetstone.rewards.environment_state.unit_tests import TESTS_LIMITS, UnitTests, join_source, run_assertions
from whetstone.sandbox import Ending, shared_sandbox
from whetstone.sandbox.guest_call import read_literal
from whetstone.trajectory import Score, Task, Trajectory

_NOTHING = {"parsed": 0.0, "valid": 0.0, "coverage": 0.0, "detected": 0.0, "smells": 0.0}


@dataclass(frozen=True, slots=True)
class WrittenTest:
    """One test: a function `test_…` without arguments, or an assertion outside of functions."""

    source: str
    """Source that defines and runs it."""
    smells: frozenset[str]
    """Static findings: `no_assertion` (none depends on a call of the function), `conditional`, `handles_exceptions`,
    `prints`, `duplicate_assertion`."""


def find_tests(code: str, entry: str) -> tuple[str, list[WrittenTest]]:
    """Return the source that all tests share, and the tests.

    Args:
        code: Source of the tests.
        entry: Name of the function that they test.

    Raises:
        SyntaxError, ValueError, RecursionError: If the source cannot be parsed.
    """
    tree = parse_syntax(code)
    assert isinstance(tree, ast.Module)
    shared, tests = [], []
    for node in tree.body:
        is_function = isinstance(node, ast.FunctionDef) and node.name.startswith("test")
        if is_function or isinstance(node, ast.Assert):
            call = f"\n{node.name}()" if isinstance(node, ast.FunctionDef) else ""
            tests.append(WrittenTest(ast.unparse(node) + call, _find_smells(node, entry)))
        else:
            shared.append(node)
    return "\n".join(map(ast.unparse, shared)), tests


def _find_smells(test: ast.AST, entry: str) -> frozenset[str]:
    """Return the static findings of a test; see `WrittenTest`."""
    nodes = list(ast.walk(test))
    assertions = [node.test for node in nodes if isinstance(node, ast.Assert)]
    results = {entry}  # the function, and names of values that depend on its calls
    for node in nodes:
        if isinstance(node, ast.Assign) and _reads_name(node.value, results):
            results |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    texts = [ast.unparse(each) for each in assertions]
    findings = {
        "no_assertion": not any(_reads_name(each, results) for each in assertions),
        "conditional": any(isinstance(node, ast.If | ast.IfExp | ast.Match) for node in nodes),
        "handles_exceptions": any(isinstance(node, ast.Try) for node in nodes),
        "prints": any(isinstance(node, ast.Call) and ast.unparse(node.func) == "print" for node in nodes),
        "duplicate_assertion": len(set(texts)) < len(texts),
    }
    return frozenset(name for name, holds in findings.items() if holds)


def _reads_name(tree: ast.AST, names: set[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(tree))


class WrittenTests:
    """Returns how well the tests in the final answer test the task's function.

    `task.private` has `entry_point`, the function's name, `solution`, its right code, and optionally `prelude`, code
    that is prepended to both it and the tests, and the task's own tests (`cases` or `test`, as for `unit_tests`).

    A test is valid if an assertion depends on a call of the function and it passes with the right code. Mutants are
    variants of the right code with one changed operator, number or returned value; those that the task's own tests do
    not detect are left out. The reward is the fraction of valid tests times a weighted mean of the detected fraction of
    mutants and of the fraction of statements that valid tests run. Tests that detect no mutant get 0.

    Args:
        coverage_weight: Weight of the statements, 0 to 1. With 1, tests that detect one mutant and assert
            little get the whole reward for running each statement.
        smell_penalty: Subtracted, times the fraction of tests with a static finding (`WrittenTest.smells`); the reward
            is at least 0.
        max_tests: Maximum number of tests; further ones are ignored.
        max_mutants: Maximum number of mutants.
        seconds: Timeout of a call of the function, in seconds.
        total_seconds: Timeout of all runs of an episode, in seconds; mutants that are left are not detected.
        sandbox: Sandbox, see the tool `python`.

    Raises:
        InfrastructureError: If the sandbox fails; the score is then unknown.
        TaskError: If a task has no `entry_point` or no `solution`.
    """

    def __init__(
        self,
        *,
        coverage_weight: Share = 0.0,
        smell_penalty: NotNegative = 0.0,
        max_tests: Count = 20,
        max_mutants: Count = 10,
        seconds: Positive = 3.0,
        total_seconds: Positive = 30.0,
        sandbox: str = "auto",
    ) -> None:
        self.coverage_weight, self.smell_penalty = coverage_weight, smell_penalty
        self.max_tests, self.max_mutants = max_tests, max_mutants
        self.seconds, self.total_seconds, self.sandbox = seconds, total_seconds, sandbox
        self._mutants: dict[str, list[str]] = {}

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Run the tests of the final answer with the right code and its mutants.

        Raises:
            InfrastructureError: If the sandbox fails; the score is then unknown.
            TaskError: If the task has no `entry_point` or no `solution`.
        """
        for name in ("entry_point", "solution"):
            if not task.private.get(name):
                raise TaskError(f'written_tests: task "{task.id}" has no `{name}` in its private data')
        entry, answer = str(task.private["entry_point"]), extract_code(trajectory)
        try:
            shared, tests = find_tests(answer or "", entry)
        except (SyntaxError, ValueError, RecursionError):
            return Score(0.0, dict(_NOTHING), success=False)
        tests = tests[: self.max_tests]
        if not tests:
            return Score(0.0, {**_NOTHING, "parsed": float(bool(answer))}, success=False)
        prelude = str(task.private.get("prelude", ""))
        source = join_source(prelude, str(task.private["solution"]), entry)
        deadline = time.monotonic() + self.total_seconds
        recorded, count = record_statements(source)
        reached: set[int] = set()
        valid = []
        for test in tests:
            if "no_assertion" not in test.smells and time.monotonic() < deadline:
                passed, seen = await self._run(recorded, entry, prelude, f"{shared}\n{test.source}")
                valid += [test] if passed else []
                reached |= seen if passed else set()
        together = "\n".join([shared, *(test.source for test in valid)])
        mutants = await self._mutants_of(task, source)
        run = partial(self._run, entry=entry, prelude=prelude, tests=together)
        detected = await _count_detected(source, mutants, run, together, deadline) if valid else 0
        parts = {
            "parsed": 1.0,
            "valid": len(valid) / len(tests),
            "coverage": len(reached) / max(1, count),
            "detected": detected / max(1, len(mutants)),
            "smells": sum(bool(test.smells) for test in tests) / len(tests),
        }
        mean = self.coverage_weight * parts["coverage"] + (1 - self.coverage_weight) * parts["detected"]
        value = parts["valid"] * mean if detected else 0.0
        value = max(0.0, value - self.smell_penalty * parts["smells"])
        return Score(value, parts, success=parts["valid"] == parts["detected"] == 1)

    async def _run(self, source: str, entry: str, prelude: str, tests: str) -> tuple[bool, set[int]]:
        """Run tests against code in new sandboxes; return whether they pass, and the recorded statements."""
        pool = shared_sandbox(self.sandbox)
        solution, test_session = pool.session(limits=TESTS_LIMITS), pool.session(limits=TESTS_LIMITS)
        limits = {"seconds": self.seconds, "total_seconds": self.total_seconds}
        try:
            loaded = await solution.python(f"{source}\nNone", wall_seconds=self.seconds)
            if loaded.ending is not Ending.OK or loaded.restarted:
                return False, set()
            result = await run_assertions(solution, test_session, entry, prelude, tests, **limits)
            seen = await solution.python(f"sorted({REACHED})") if REACHED in source else None
        except ValueError:  # they do not compile together
            return False, set()
        finally:
            solution.close()
            test_session.close()
        known = read_literal(seen.value) if seen is not None and seen.value is not None else ()
        return result.passed == 1, set(known)

    async def _mutants_of(self, task: Task, source: str) -> list[str]:
        """Return the mutants of a task that its own tests detect; all of them if it has no tests."""
        tests = {name: task.private[name] for name in ("cases", "test", "prelude") if name in task.private}
        key = hashlib.sha256(repr((source, tests)).encode()).hexdigest()
        if key not in self._mutants:
            mutants = create_mutants(source, max_mutants=self.max_mutants)
            if tests.keys() & {"cases", "test"}:
                private = {"entry_point": task.private["entry_point"], **tests}
                grade = partial(UnitTests(seconds=self.seconds, sandbox=self.sandbox).grade_code, private=private)
                mutants = [code for code in mutants if not await grade(code)]
            self._mutants[key] = mutants
        return self._mutants[key]


async def _count_detected(
    source: str,
    mutants: Sequence[str],
    run: Callable[[str], Awaitable[tuple[bool, set[int]]]],
    tests: str,
    deadline: float,
) -> int:
    """Return the number of mutants with which the tests fail; 0 if they also fail with the right code.

    The right code is run once more, at a place that depends on the tests, so that failing at random gains nothing.
    """
    place = int.from_bytes(hashlib.sha256(tests.encode()).digest()[:4]) % (len(mutants) + 1)
    detected = 0
    for code in [*mutants[:place], source, *mutants[place:]]:
        if time.monotonic() > deadline:
            return detected
        passed, _ = await run(code)
        if code is source and not passed:
            return 0
        detected += code is not source and not passed
    return detected
