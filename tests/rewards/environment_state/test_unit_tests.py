"""Code is scored by its behavior, whatever it does to the scorer."""

import json
import random
from pathlib import Path

import numpy
import pytest

from support.rewards import episode, score, task
from support.sandbox import needs_isolation
from whetstone.sandbox.guest_call import read_literal

CASES = task("?", entry_point="double", cases=[[[1], 2], [[[1, 2]], [1, 2, 1, 2]], [["a"], "aa"]])
ASSERTS = task(
    "?",
    entry_point="double",
    test="def check(candidate):\n    assert candidate(2) == 4\n    assert candidate('a') == 'aa'\n",
)
GOOD = "def double(x):\n    return x * 2"
HUMANEVAL = Path(__file__).parents[4] / "shared" / "data" / "humaneval" / "HumanEval.jsonl"

CHEATS = {
    "ends the process with success": ("import sys, os\ndef double(x):\n    os._exit(0)"),
    "exits as if all were well": ("import sys\ndef double(x):\n    sys.exit(0)"),
    "equals everything": (
        "class Any:\n"
        "    def __eq__(self, other): return True\n"
        "    def __repr__(self): return 'Any()'\n"
        "def double(x):\n"
        "    return Any()"
    ),
    "a text that equals everything": (
        "class S(str):\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = str.__hash__\n"
        "def double(x):\n"
        "    return S('x')"
    ),
    "replaces assert's friends": (
        "import builtins, unittest\n"
        "builtins.AssertionError = KeyError\n"
        "unittest.TestCase.assertEqual = lambda *a: None\n"
        "def double(x):\n"
        "    return None"
    ),
    "looks for the tests": (
        "import gc, sys, inspect\n"
        "def double(x):\n"
        "    for f in list(sys._current_frames().values()):\n"
        "        while f:\n"
        "            if 'check' in f.f_globals: return 4\n"
        "            f = f.f_back\n"
        "    return [o for o in gc.get_objects() if isinstance(o, str) and 'assert candidate' in o][0]"
    ),
    "writes a hook for the runner": ("open('conftest.py','w').write('import pytest')\ndef double(x):\n    return 0"),
    "prints that it passed": (
        "print('passed'); print(('passed', ''))\ndef double(x):\n    print(\"('passed', '')\")\n    return 0"
    ),
    "runs for ever": ("def double(x):\n    while True: pass"),
    "takes all the memory": ("def double(x):\n    return [0] * 10**12"),
    "returns a number without a notation": (
        "class Odd:\n    def __repr__(self): return '0x' + 'f' * 50000\ndef double(x):\n    return Odd()"
    ),
    "shows brackets without end": (
        "class Odd:\n    def __repr__(self): return '[' * 90000\ndef double(x):\n    return Odd()"
    ),
    "shows a mebibyte": (
        "import os, json, struct\n"
        "def double(x):\n"
        "    for n in range(9):\n"
        "        b = json.dumps({'number': n, 'value': '([' + '[],' * 340000 + '],None)'}).encode()\n"
        "        for fd in range(3, 12):\n"
        "            try: os.write(fd, struct.pack('!I', len(b)) + b)\n"
        "            except OSError: pass\n"
        "    return 0"
    ),
    "hands over arguments of another shape": (
        "class Odd:\n    def __repr__(self): return '0, ({1: 2}, [3])), ((4'\ndef double(x):\n    return Odd()"
    ),
    "raises an unknown exception": (
        "class Odd(BaseException):\n    def __str__(self): raise SystemExit\ndef double(x):\n    raise Odd"
    ),
    "takes its session with it": (
        "import os, signal\ndef double(x):\n    os.kill(-1, signal.SIGKILL)\n    os.kill(os.getppid(), signal.SIGKILL)"
    ),
    "takes all the memory little by little": (
        "kept = []\ndef double(x):\n    while True: kept.append(bytearray(10**6))"
    ),
    "returns a text that is too long to pass on": ("def double(x):\n    return 'x' * 99000 + '\\\\' * 900"),
    "is no Python": ("def double(x) return x"),
    "is another function": ("def triple(x):\n    return x * 3"),
}


@needs_isolation
@pytest.mark.parametrize("problem", [CASES, ASSERTS], ids=["cases", "asserts"])
def test_a_good_solution_passes(problem):
    assert score("unit_tests", episode(f"Here:\n```python\n{GOOD}\n```"), problem).value == 1
    assert score("unit_tests", episode(GOOD), problem).success


@needs_isolation
@pytest.mark.parametrize("cheat", list(CHEATS))
@pytest.mark.parametrize("problem", [CASES, ASSERTS], ids=["cases", "asserts"])
def test_no_trick_passes(cheat, problem):
    result = score("unit_tests", episode(f"```python\n{CHEATS[cheat]}\n```"), problem, seconds=1.0)
    assert (result.value, result.success) == (0, False)


@needs_isolation
def test_fraction_of_passed_tests_is_optional():
    half = "def double(x):\n    return 2"
    assert score("unit_tests", episode(half), CASES).value == 0
    assert score("unit_tests", episode(half), CASES, partial_credit=True).value == pytest.approx(1 / 3)
    assert not score("unit_tests", episode(half), CASES, partial_credit=True).success


@needs_isolation
def test_exceptions_and_random_numbers_are_passed_on():
    problem = task(
        "?",
        entry_point="root",
        test=(
            "import random\ndef check(candidate):\n    for _ in range(5):\n        n = random.randint(0, 99)\n"
            "        assert candidate(n * n) == n\n    try:\n        candidate(-1)\n"
            "    except ValueError:\n        return\n"
            "    assert False\n"
        ),
    )
    assert score("unit_tests", episode("import math\ndef root(n):\n    return math.isqrt(n)"), problem).success
    assert not score("unit_tests", episode("def root(n):\n    return round(abs(n) ** 0.5)"), problem).success


@needs_isolation
def test_invalid_tests_are_no_failure_of_the_agent():
    with pytest.raises(ValueError, match="cannot be run"):
        score("unit_tests", episode(GOOD), task("?", entry_point="double", test="def check(candidate) assert"))


@needs_isolation
def test_no_answer():
    assert score("unit_tests", episode(), CASES).value == 0


def test_literals():
    assert read_literal("(1, -inf, {'a': {2}}, None, b'x')") == (1, float("-inf"), {"a": {2}}, None, b"x")
    for text in ("open('x')", "object()", "x", "1+1j*len"):
        with pytest.raises((ValueError, KeyError)):
            read_literal(text)


@needs_isolation
@pytest.mark.skipif(
    not HUMANEVAL.is_file(), reason=f"HumanEval is missing: put HumanEval.jsonl into {HUMANEVAL.parent}"
)
@pytest.mark.parametrize("number", [0, 10, 32, 38, 50, 74, 100, 116, 163])
def test_humaneval_solutions_pass_and_others_fail(number):
    row = json.loads(HUMANEVAL.read_text().splitlines()[number])
    problem = task(row["prompt"], entry_point=row["entry_point"], test=row["test"], prelude=row["prompt"])
    assert score("unit_tests", episode(f"```python\n{row['prompt']}{row['canonical_solution']}\n```"), problem).success
    assert not score("unit_tests", episode(f"```python\n{row['prompt']}    return None\n```"), problem).success


IN_PLACE = {
    "a list": ("x = [3, 1, 2]\n    y = x\n    f(x)\n    assert y == [1, 2, 3]", "def f(x):\n    x.sort()"),
    "by name": ("x = [3, 1]\n    f(x=x)\n    assert x == [1, 3]", "def f(x):\n    x.sort()"),
    "a mapping": ("x = {'a': [1]}\n    inner = x['a']\n    f(x)\n    assert inner == [1, 5] and x['b'] == 2",
                  "def f(x):\n    x['a'].append(5)\n    x['b'] = 2"),
    "a set": ("x = {1}\n    f(x)\n    assert x == {1, 2}", "def f(x):\n    x.add(2)"),
    "lists that change places": ("a, b = [2], [1]\n    x = [a, b]\n    f(x)\n    assert x[0] is b and a == [2]",
                                 "def f(x):\n    x.sort()"),
    "twice": ("x = []\n    f(x)\n    f(x)\n    assert x == [0, 1]", "def f(x):\n    x.append(len(x))"),
}  # fmt: skip


@needs_isolation
@pytest.mark.parametrize("what", list(IN_PLACE))
def test_mutated_arguments_are_visible_to_the_tests(what):
    test, solution = IN_PLACE[what]
    problem = task("?", entry_point="f", test=f"def check(f):\n    {test}\n")
    assert score("unit_tests", episode(solution), problem).success
    assert not score("unit_tests", episode("def f(x):\n    return None"), problem).success


@needs_isolation
def test_random_numbers_are_the_same_in_each_run_of_tests_and_solution():
    drawn = "random.random(), float(numpy.random.rand()), float(numpy.random.default_rng().random())"
    problem = task(
        "?",
        entry_point="f",
        test=(
            "import random, numpy\ndef check(f):\n    for _ in range(4):\n"
            f"        n = [{drawn}]\n        assert f(n) == n[::-1]\n"
        ),
    )
    assert score("unit_tests", episode("def f(n):\n    return n[::-1]"), problem).success
    wanted = [random.Random(0).random(), float(numpy.random.RandomState(0).rand())]
    solution = "import random, numpy\ndef f():\n    return [random.random(), float(numpy.random.rand())]"
    assert score("unit_tests", episode(solution), task("?", entry_point="f", cases=[[[], wanted]])).success


@needs_isolation
def test_time_limit_is_for_all_cases_together():
    slow = task("?", entry_point="double", cases=[[[n], 2 * n] for n in range(400)])
    code = "import time\ndef double(x):\n    time.sleep(0.2)\n    return 2 * x"
    result = score("unit_tests", episode(code), slow, total_seconds=1.0, partial_credit=True)
    assert 0 < result.value < 0.1
    assert not result.success


@needs_isolation
def test_result_too_long_to_be_passed_back_is_a_failure():
    problem = task("?", entry_point="f", test="def check(f):\n    assert f(f('x')) == 'x'\n")
    assert score("unit_tests", episode("def f(x):\n    return 'y' * 99_990"), problem).value == 0
