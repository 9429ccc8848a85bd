"""Faster code is rewarded, and code that only appears faster is not."""

import pytest

from support.rewards import episode, score, task
from support.sandbox import needs_isolation
from whetstone.errors import InfrastructureError
from whetstone.rewards.kernels.kernel import broken_rule
from whetstone.rewards.kernels.speedup import Speedup, Timed, relative_iqr, standardize_speedups

SLOW = """
def total(xs):
    s = 0
    for i in range(len(xs)):
        for _ in range(30):
            s = s + 0
        s = s + xs[i]
    return s
"""
INPUTS = """
import random
def inputs(seed):
    draw = random.Random(seed)
    return ([draw.randint(0, 99) for _ in range(6000)],)
"""
TASK = task("?", entry_point="total", reference=SLOW, inputs=INPUTS)
FAST = "def total(xs):\n    return sum(xs)"


def test_worked_numbers():
    assert standardize_speedups([1, 1.2, 1.1, 6]) == pytest.approx([-0.624, -0.53, -0.577, 1.5], abs=1e-3)
    assert standardize_speedups([2.0, 2.0]) == [0, 0]
    assert relative_iqr([1, 1, 1, 1, 1]) == 0


@needs_isolation
def test_faster_code_with_equal_results():
    waits = "import time\ndef total(xs):\n    time.sleep(0.2)\n    return sum(xs)"  # on a busy machine, too
    sleeping = task("?", entry_point="total", reference=waits, inputs=INPUTS)
    fast = score("speedup", episode(f"```python\n{FAST}\n```"), sleeping, pairs=3, spread=5.0)
    same = score("speedup", episode(waits), sleeping, pairs=3, spread=5.0)
    assert fast.success
    assert same.success
    assert fast.value > 1.5 * same.value > 0


CHEATS = {
    "remembers": "seen = {}\ndef total(xs):\n    return seen.setdefault('x', sum(xs))",
    "turns back the clock": "import time\ntime.perf_counter = lambda: 0.0\ndef total(xs):\n    return 0",
    "leaves work out": "def total(xs):\n    return sum(xs[:10]) * 600",
    "puts it off": "def total(xs):\n    return (x for x in xs)",
    "equals everything": "class A(int):\n    def __eq__(self, o): return True\ndef total(xs):\n    return A()",
    "makes inputs small": "import random\nrandom.Random = None\nrange = lambda n: []\ndef total(xs):\n    return 0",
    "is no code": "def total(xs) return",
}


@needs_isolation
@pytest.mark.parametrize("cheat", list(CHEATS))
def test_no_trick_is_rewarded(cheat):
    result = score("speedup", episode(f"```python\n{CHEATS[cheat]}\n```"), TASK, pairs=3, spread=9.0)
    assert (result.value, result.success) == (0, False)


@needs_isolation
def test_invalid_reference_is_no_failure_of_the_agent():
    broken = task("?", entry_point="total", reference="def total(", inputs="")
    with pytest.raises(ValueError, match="reference or inputs do not run"):
        score("speedup", episode(FAST), broken)


KERNEL = """
import triton
@triton.jit
def k(x):
    pass
def softmax(x):
    return launch(x)
def launch(x):
    k[(1,)](x)
    return x
"""


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        (KERNEL, ""),
        (KERNEL.replace("k[(1,)](x)", "k(x)"), "no kernel is launched"),
        (KERNEL.replace("return launch(x)", "return x"), "no kernel is launched"),
        (KERNEL.replace("@triton.jit", "# @triton.jit"), "no function has"),
        (KERNEL.replace("import triton", "from triton import jit as fast").replace("@triton.jit", "@fast"), ""),
        ("import torch as t\n" + KERNEL.replace("return x", "return t.softmax(x)"), "it uses torch.softmax"),
        ("from torch import softmax as s\n" + KERNEL.replace("return x", "return s(x)"), "it uses torch.softmax"),
        ("import torch\nf = torch.softmax\n" + KERNEL.replace("return x", "return f(x)"), "it uses torch.softmax"),
        (KERNEL + "\nexec('import torch')", "it calls exec"),
        ("def softmax(:", "it does not parse"),
    ],
)
def test_rules_are_checked_in_the_syntax_tree(code, wrong):
    result = broken_rule(code, entry="softmax", decorator="triton.jit", forbidden=["torch.softmax", "torch.nn.*"])
    assert result.startswith(wrong) if wrong else result == ""


@needs_isolation
def test_broken_rule_is_a_factor_of_the_test_score():
    terms = {
        "rule": {"name": "kernel", "decorator": None, "forbidden": ["sorted"], "weight": 0},
        "passes": {"name": "unit_tests", "times": "rule"},
    }
    problem = task("?", entry_point="order", cases=[[[[2, 1]], [1, 2]]])
    own = "def order(xs):\n    return xs if xs[0] <= xs[1] else xs[::-1]"
    for code, value in ((own, 1), ("def order(xs):\n    return sorted(xs)", 0)):
        assert score("composed", episode(f"```python\n{code}\n```"), problem, terms=terms).value == value


@pytest.mark.parametrize("name", ["eval", "exec", "compile", "__import__", "getattr", "importlib.import_module"])
def test_names_that_can_run_any_code_are_not_called(name):
    message = f"it calls {name}, which can run any code"
    assert broken_rule(f"import importlib\n{name}('x')", entry=None, decorator=None, forbidden=[]) == message
    assert broken_rule(f"print({name.partition('.')[0]})", entry=None, decorator=None, forbidden=[]) == ""


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("import torch.nn.functional\ntorch.nn.functional.relu(x)", "it uses torch.nn.functional.relu"),
        ("import torch.nn as n\nn.Linear(1, 1)", "it uses torch.nn.Linear"),
        ("import torch\nb = a\na = torch.nn\nb.Linear", "it uses torch.nn.Linear"),
        ("a = c = sorted\nb = a\nb([])", "it uses sorted"),
        ("b = a\na = sorted", "it uses sorted"),
        ("f().nn.Linear", ""),
        ("torch.nnet(1)", ""),
        ("x.sorted()", ""),
    ],
)
def test_aliases_of_names_are_resolved(code, wrong):
    result = broken_rule(code, entry=None, decorator=None, forbidden=["sorted", "torch.nn.*"])
    assert result == wrong


def test_kernel_is_recognized_by_its_parts():
    launched = f"```python\n{KERNEL}```"
    problem = task("?", entry_point="softmax")
    assert score("kernel", episode(launched), problem, decorator="triton.jit").parts == {"rule": 1}
    unused = launched.replace("return launch(x)", "return x")
    assert score("kernel", episode(unused), problem, decorator="triton.jit").parts == {"rule": 0}
    assert score("kernel", episode(unused), problem, decorator=None).value == 1
    assert (
        score("kernel", episode(unused), task("?"), decorator="triton.jit").value == 1
    )  # any function can be the entry point
    assert score("kernel", episode("no code"), problem).value == 0


def unsteady(reference):
    """Return a measurement with scattered ratios and these times of the reference."""

    class Measured(Speedup):
        async def _pairs(self, code, task, attempt):
            return Timed((4.0, 0.5, 4.0, 0.5, 4.0, 0.5, 4.0), tuple(reference))

    return score(Measured(), episode(FAST), task("?", entry_point="total"))


def test_unsteady_solution_counts_as_slow_as_possible():
    result = unsteady([1.0, 1.01, 1.02, 1.0, 1.01, 1.0, 1.0])
    assert (result.value, result.parts["faster"]) == (0.5, 0.0)
    with pytest.raises(InfrastructureError, match="vary too much"):  # the machine is unsteady
        unsteady([1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0])
