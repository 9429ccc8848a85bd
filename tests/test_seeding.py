import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from whetstone.seeding import derive_random, derive_seed

PARTS = st.lists(st.integers() | st.text(max_size=5), min_size=1, max_size=4)


@given(PARTS, PARTS)
def test_different_parts_give_different_seeds(left, right):
    assert (derive_seed(*left) == derive_seed(*right)) == (left == right)


def test_a_number_and_its_text_are_different_parts():
    assert derive_seed(1) != derive_seed("1")
    assert derive_seed("a", "b") != derive_seed("ab")


def test_another_process_derives_the_same_seed():
    code = "from whetstone.seeding import derive_seed; print(derive_seed('run', 7))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(completed.stdout) == derive_seed("run", 7)
    assert 0 <= derive_seed("run", 7) < 2**63


def test_derived_generator_is_independent():
    assert derive_random(1).random() == derive_random(1).random() != derive_random(2).random()
