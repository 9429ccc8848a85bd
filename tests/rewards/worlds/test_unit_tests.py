"""Code is judged by what it does, whatever it does to those who judge."""

import json
from pathlib import Path

import pytest

from tests_rewards import episode, score, task
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
    "is no Python": ("def double(x) return x"),
    "is another function": ("def triple(x):\n    return x * 3"),
}


@pytest.mark.parametrize("given", [CASES, ASSERTS], ids=["cases", "asserts"])
def test_a_good_solution_passes(given):
    assert score("unit_tests", episode(f"Here:\n```python\n{GOOD}\n```"), given).value == 1
    assert score("unit_tests", episode(GOOD), given).success


@pytest.mark.parametrize("cheat", list(CHEATS))
@pytest.mark.parametrize("given", [CASES, ASSERTS], ids=["cases", "asserts"])
def test_no_trick_passes(cheat, given):
    found = score("unit_tests", episode(f"```python\n{CHEATS[cheat]}\n```"), given, seconds=1.0)
    assert (found.value, found.success) == (0, False)


def test_a_share_is_for_who_asks_for_it():
    half = "def double(x):\n    return 2"
    assert score("unit_tests", episode(half), CASES).value == 0
    assert score("unit_tests", episode(half), CASES, share=True).value == pytest.approx(1 / 3)
    assert not score("unit_tests", episode(half), CASES, share=True).success


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


def test_tests_that_are_none_say_nothing_of_the_agent():
    with pytest.raises(ValueError, match="cannot be run"):
        score("unit_tests", episode(GOOD), task("?", entry_point="double", test="def check(candidate) assert"))


def test_no_answer():
    assert score("unit_tests", episode(), CASES).value == 0


def test_literals():
    assert read_literal("(1, -inf, {'a': {2}}, None, b'x')") == (1, float("-inf"), {"a": {2}}, None, b"x")
    for text in ("open('x')", "object()", "x", "1+1j*len"):
        with pytest.raises((ValueError, KeyError)):
            read_literal(text)


@pytest.mark.skipif(not HUMANEVAL.is_file(), reason="HumanEval is not beside the project (shared/data/humaneval)")
@pytest.mark.parametrize("number", [0, 10, 32, 38, 50, 74, 100, 116, 163])
def test_humanevals_own_solutions_pass_and_others_do_not(number):
    row = json.loads(HUMANEVAL.read_text().splitlines()[number])
    given = task(row["prompt"], entry_point=row["entry_point"], test=row["test"], prelude=row["prompt"])
    assert score("unit_tests", episode(f"```python\n{row['prompt']}{row['canonical_solution']}\n```"), given).success
    assert not score("unit_tests", episode(f"```python\n{row['prompt']}    return None\n```"), given).success
