"""Code is judged by what it does, whatever it does to those who judge."""

import json
import random
from pathlib import Path

import numpy
import pytest

from tests_rewards import episode, score, task
from tests_sandbox import needs_isolation
from whetstone.sandbox.calling import read_literal

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
    "shows a number nobody can write": (
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
    "raises what nobody knows": (
        "class Odd(BaseException):\n    def __str__(self): raise SystemExit\ndef double(x):\n    raise Odd"
    ),
    "takes its session with it": (
        "import os, signal\ndef double(x):\n    os.kill(-1, signal.SIGKILL)\n    os.kill(os.getppid(), signal.SIGKILL)"
    ),
    "takes all the memory little by little": (
        "kept = []\ndef double(x):\n    while True: kept.append(bytearray(10**6))"
    ),
    "says what cannot be handed on": ("def double(x):\n    return 'x' * 99000 + '\\\\' * 900"),
    "is no Python": ("def double(x) return x"),
    "is another function": ("def triple(x):\n    return x * 3"),
}


@needs_isolation
@pytest.mark.parametrize("given", [CASES, ASSERTS], ids=["cases", "asserts"])
def test_a_good_solution_passes(given):
    assert score("unit_tests", episode(f"Here:\n```python\n{GOOD}\n```"), given).value == 1
    assert score("unit_tests", episode(GOOD), given).success


@needs_isolation
@pytest.mark.parametrize("cheat", list(CHEATS))
@pytest.mark.parametrize("given", [CASES, ASSERTS], ids=["cases", "asserts"])
def test_no_trick_passes(cheat, given):
    found = score("unit_tests", episode(f"```python\n{CHEATS[cheat]}\n```"), given, seconds=1.0)
    assert (found.value, found.success) == (0, False)


@needs_isolation
def test_a_share_is_for_who_asks_for_it():
    half = "def double(x):\n    return 2"
    assert score("unit_tests", episode(half), CASES).value == 0
    assert score("unit_tests", episode(half), CASES, partial_credit=True).value == pytest.approx(1 / 3)
    assert not score("unit_tests", episode(half), CASES, partial_credit=True).success


@needs_isolation
def test_exceptions_and_chance_come_across():
    given = task(
        "?",
        entry_point="root",
        test=(
            "import random\ndef check(candidate):\n    for _ in range(5):\n        n = random.randint(0, 99)\n"
            "        assert candidate(n * n) == n\n    try:\n        candidate(-1)\n"
            "    except ValueError:\n        return\n"
            "    assert False\n"
        ),
    )
    assert score("unit_tests", episode("import math\ndef root(n):\n    return math.isqrt(n)"), given).success
    assert not score("unit_tests", episode("def root(n):\n    return round(abs(n) ** 0.5)"), given).success


@needs_isolation
def test_tests_that_are_none_say_nothing_of_the_agent():
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
def test_humanevals_own_solutions_pass_and_others_do_not(number):
    row = json.loads(HUMANEVAL.read_text().splitlines()[number])
    given = task(row["prompt"], entry_point=row["entry_point"], test=row["test"], prelude=row["prompt"])
    assert score("unit_tests", episode(f"```python\n{row['prompt']}{row['canonical_solution']}\n```"), given).success
    assert not score("unit_tests", episode(f"```python\n{row['prompt']}    return None\n```"), given).success


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
def test_what_a_call_changes_in_place_is_changed_for_the_tests(what):
    test, solution = IN_PLACE[what]
    given = task("?", entry_point="f", test=f"def check(f):\n    {test}\n")
    assert score("unit_tests", episode(solution), given).success
    assert not score("unit_tests", episode("def f(x):\n    return None"), given).success


@needs_isolation
def test_chance_is_the_same_at_each_attempt_of_the_tests_and_for_the_solution():
    drawn = "random.random(), float(numpy.random.rand()), float(numpy.random.default_rng().random())"
    given = task(
        "?",
        entry_point="f",
        test=(
            "import random, numpy\ndef check(f):\n    for _ in range(4):\n"
            f"        n = [{drawn}]\n        assert f(n) == n[::-1]\n"
        ),
    )
    assert score("unit_tests", episode("def f(n):\n    return n[::-1]"), given).success
    wanted = [random.Random(0).random(), float(numpy.random.RandomState(0).rand())]
    solution = "import random, numpy\ndef f():\n    return [random.random(), float(numpy.random.rand())]"
    assert score("unit_tests", episode(solution), task("?", entry_point="f", cases=[[[], wanted]])).success


@needs_isolation
def test_a_solution_that_is_slow_at_every_case_has_had_its_time():
    slow = task("?", entry_point="double", cases=[[[n], 2 * n] for n in range(400)])
    code = "import time\ndef double(x):\n    time.sleep(0.2)\n    return 2 * x"
    result = score("unit_tests", episode(code), slow, total_seconds=1.0, partial_credit=True)
    assert 0 < result.value < 0.1
    assert not result.success


@needs_isolation
def test_a_result_too_long_to_be_asked_with_is_a_solution_that_fails():
    given = task("?", entry_point="f", test="def check(f):\n    assert f(f('x')) == 'x'\n")
    assert score("unit_tests", episode("def f(x):\n    return 'y' * 99_990"), given).value == 0
