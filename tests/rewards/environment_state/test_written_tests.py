"""Reward for tests by an agent: detected mutants are paid, cheats are not."""

import ast

import pytest

from support.rewards import episode, score, task
from support.sandbox import needs_isolation
from whetstone.errors import TaskError
from whetstone.rewards.environment_state.code_mutations import REACHED, create_mutants, record_statements
from whetstone.rewards.environment_state.written_tests import find_tests

SOLUTION = """
def grade(points):
    if points >= 50:
        return "pass"
    return "fail"
"""
TASK = task("Write tests.", entry_point="grade", solution=SOLUTION)
"""Its mutants: `>`, 51, and None instead of each text."""
GOOD = (
    'def test_bounds():\n    assert grade(50) == "pass"\n    assert grade(49) == "fail"\n    assert grade(51) == "pass"'
)
CHEATS = {
    "asserts nothing": "grade(50)\ngrade(49)\ndef test_a():\n    grade(0)",
    "asserts a truth": "def test_a():\n    grade(50)\n    grade(49)\n    assert True",
    "compares the result with itself": "assert grade(50) == grade(50)\nassert grade(49) == grade(49)",
    "defines the function": 'def grade(points):\n    return "pass"\nassert grade(50) == "pass"',
    "replaces its assertion": "class Any:\n    def __eq__(self, other): return True\nassert Any() == grade(50)",
    "ends the process": "import os\ngrade(1)\nos._exit(0)\nassert grade(1)",
    "counts its runs in a file": (
        "import os\ndef test_a():\n    first = not os.path.exists('seen')\n    open('seen', 'w').close()\n"
        "    assert grade(1) and first"
    ),
    "does not parse": "assert grade(50) ==",
    "does not compile": "return 1\nassert grade(50) == 'pass'",
    "is wrong": 'assert grade(50) == "fail"',
    "no answer": "",
}


def grade_tests(code, of=TASK, **options):
    return score("written_tests", episode(f"```python\n{code}\n```"), of, **options)


@needs_isolation
def test_tests_of_both_sides_of_the_bound_detect_every_mutant():
    result = grade_tests(GOOD)
    assert (result.value, result.success) == (1.0, True)
    assert result.parts == {"parsed": 1, "valid": 1, "coverage": 1, "detected": 1, "smells": 0}


@needs_isolation
@pytest.mark.parametrize(
    ("code", "valid", "coverage", "detected", "value"),
    [
        ('assert grade(50) == "pass"', 1, 2 / 3, 3 / 4, 3 / 4),  # not the mutant that fails with None
        ('assert grade(0) == "fail"', 1, 2 / 3, 1 / 4, 1 / 4),
        ('assert grade(90) == "pass"\nassert grade(0) == "fail"', 1, 1, 2 / 4, 2 / 4),
        ('assert grade(50) == "pass"\nassert grade(50) == "fail"', 1 / 2, 2 / 3, 3 / 4, 3 / 8),
        ("assert grade(90) is not None", 1, 2 / 3, 1 / 4, 1 / 4),
    ],
)
def test_reward_is_the_valid_fraction_times_the_detected_fraction(code, valid, coverage, detected, value):
    result = grade_tests(code)
    parts = (result.parts["valid"], result.parts["coverage"], result.parts["detected"], result.value)
    assert parts == pytest.approx((valid, coverage, detected, value))
    assert not result.success


@needs_isolation
def test_weight_of_the_statements_and_penalty_of_findings():
    code = 'def test_a():\n    print(1)\n    assert grade(50) == "pass"'
    assert grade_tests(code, coverage_weight=0.5).value == pytest.approx((2 / 3 + 3 / 4) / 2)
    assert grade_tests(code, smell_penalty=0.25).value == pytest.approx(3 / 4 - 1 / 4)
    assert grade_tests(code, smell_penalty=5.0).value == 0


@needs_isolation
@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_earn_nothing(cheat):
    result = grade_tests(CHEATS[cheat], coverage_weight=1.0)
    assert (result.value, result.success) == (0, False), result.parts


@needs_isolation
def test_mutants_that_the_own_tests_of_the_task_do_not_detect_are_left_out():
    own = task("?", entry_point="grade", solution=SOLUTION, cases=[[[90], "pass"], [[0], "fail"]])
    assert grade_tests('assert grade(90) == "pass"\nassert grade(0) == "fail"', own).success


def test_findings_of_a_test():
    code = (
        "import math\n"
        "def test_a():\n    value = f(1)\n    rest = value + 1\n    assert rest == 2\n    assert rest == 2\n"
        "def test_b():\n    try:\n        assert f(2)\n    except ValueError:\n        print('x')\n"
        "def test_c():\n    if f(1):\n        assert True\n"
        "assert f(3) == 1\n"
    )
    shared, tests = find_tests(code, "f")
    assert shared == "import math"
    assert [set(test.smells) for test in tests] == [
        {"duplicate_assertion"},
        {"handles_exceptions", "prints"},
        {"conditional", "no_assertion"},
        set(),
    ]


def test_task_without_solution_is_an_error():
    with pytest.raises(TaskError, match='task "t" has no `solution`'):
        grade_tests(GOOD, task("?", entry_point="grade"))


NESTED = '''
import math
LIMIT = 3
def f(values):
    """Doc."""
    total = 0
    for value in values:
        if value > LIMIT and value != 7:
            total += value
        elif value < 0:
            continue
        else:
            try:
                total -= 1 // value
            except ZeroDivisionError:
                total = 0
    def inner(x):
        return -x
    return inner(total)
'''


def test_each_mutant_differs_in_one_place():
    mutants = create_mutants(NESTED, max_mutants=100)
    original = ast.unparse(ast.parse(NESTED)).splitlines()
    assert len(set(mutants)) == len(mutants) > 10
    for mutant in mutants:
        assert sum(one != other for one, other in zip(original, mutant.splitlines(), strict=True)) == 1
    chosen = [mutants[number * len(mutants) // 4] for number in range(4)]
    assert create_mutants(NESTED, max_mutants=4) == chosen


def test_recorded_program_behaves_the_same_and_names_what_ran():
    source, count = record_statements(NESTED)
    names, plain = {}, {}
    exec(source, names)
    exec(NESTED, plain)
    assert names[REACHED] == set()
    for values in ([], [5], [7], [-1], [0], [1, 2, 9]):
        assert names["f"](list(values)) == plain["f"](list(values))
    assert names[REACHED] == set(range(count))
    names[REACHED].clear()
    names["f"]([])
    assert len(names[REACHED]) == 4  # total, for, return, and the return of inner
    assert count == 11
