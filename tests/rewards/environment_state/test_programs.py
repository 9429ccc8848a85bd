"""Programs are scored by the output for their input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rewards import episode, score, task
from support.sandbox import needs_isolation
from whetstone.rewards.environment_state.unit_tests import same_output

SUM = task("?", runs=[["1 2\n", "3\n"], ["1 0.5\n", "1.5"], ["-1 1\n", "0"]])
READS = {
    "by input": "print(sum(map(float, input().split())))",
    "by lines": "import sys\nfor line in sys.stdin:\n    print(sum(map(float, line.split())))",
    "bytes": "import sys\nprint(sum(map(float, sys.stdin.buffer.read().split())))",
    "the descriptor": "import os\nos.write(1, str(sum(map(float, open(0).read().split()))).encode())",
    "as main, and leaves": (
        "import os, sys\n"
        "def main():\n"
        "    print('working', file=sys.stderr)\n"
        "    print(sum(map(float, input().split())))\n"
        "    os._exit(0)\n"
        "if __name__ == '__main__':\n"
        "    main()"
    ),
}
WRONG = {
    "prints the first answer always": "print(3)",
    "prints the result and more text": "print(sum(map(float, input().split())))\nprint()\nprint('x')",
    "answers and then fails": "print(sum(map(float, input().split())))\nraise ValueError",
    "answers and exits with failure": "import sys\nprint(sum(map(float, input().split())))\nsys.exit(1)",
    "does not end": "while True: pass",
    "is no program": "print(",
    "searches the stack for the expected output": "import inspect\nprint([f.frame.f_locals for f in inspect.stack()])",
    "remembers": (
        "import builtins, os\nbuiltins.n = getattr(builtins, 'n', -1) + 1\n"
        "open('n', 'a').write('x')\nprint(['3', '1.5', '0'][max(builtins.n, len(open('n').read()) - 1)])"
    ),
}


def judged(code, **options):
    return score("unit_tests", episode(f"```python\n{code}\n```"), SUM, **options)


@pytest.mark.slow
@needs_isolation
@pytest.mark.parametrize("name", READS)
def test_program_can_read_and_print_in_any_usual_way(name):
    assert judged(READS[name]).success


@pytest.mark.slow
@needs_isolation
@pytest.mark.parametrize("name", WRONG)
def test_program_with_other_output_or_a_failure_is_wrong(name):
    assert judged(WRONG[name], seconds=1.0).success is False


@pytest.mark.slow
@needs_isolation
def test_fraction_counts_the_runs_before_the_first_failure():
    half = "a, b = input().split()\nprint(int(a) + int(b))"
    result = judged(half, partial_credit=True)
    assert (result.value, result.parts["passed"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


@given(st.lists(st.lists(st.integers(-999, 999), min_size=1), min_size=1))
def test_numbers_are_equal_in_any_notation(rows):
    plain = "\n".join(" ".join(map(str, row)) for row in rows)
    other = "\n".join("  ".join(f"{number}.0" for number in row) + " " for row in rows) + "\n"
    assert same_output(other, plain)
    assert not same_output(f"{plain}\n7", plain)
