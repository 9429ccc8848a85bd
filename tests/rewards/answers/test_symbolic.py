"""Mathematics is compared as mathematics, and nothing a model writes can stop the comparison."""

import pytest

from tests_rewards import episode, score, task
from tests_sandbox import needs_isolation
from whetstone.errors import RecipeError
from whetstone.rewards.answers import symbolic
from whetstone.rewards.answers.symbolic import Symbolic
from whetstone.trajectory import EndReason

pytest.importorskip("math_verify", reason="Math-Verify is not installed: pip install -e '.[math]'")


@needs_isolation
@pytest.mark.parametrize(
    ("said", "wanted", "right"),
    [
        (r"\frac{1}{2}", "0.5", True),
        ("1/2", r"\frac12", True),
        ("so it is $x+1$", "1+x", True),
        (r"$\boxed{2\sqrt{3}}$", r"\sqrt{12}", True),
        ("(1,2)", "(2,1)", False),
        ("0.33", r"\frac{1}{3}", False),
        ("12", "112", False),
        ("I do not know", "3", False),
        ("", "3", False),
    ],
)
def test_what_is_the_same(said, wanted, right):
    found = score("symbolic", episode(said), task("?", answer=wanted))
    assert (found.value, found.success) == (float(right), right)
    assert found.parts == {"correct": float(right), "undecided": 0.0}


@needs_isolation
def test_what_takes_for_ever_is_wrong_and_counted():
    found = score("symbolic", episode("9^{9^{9^{9^{9}}}}"), task("?", answer="2"), seconds=1.0)
    assert (found.value, found.success) == (0, False)
    assert found.parts == {"correct": 0, "undecided": 1}
    found = score("symbolic", episode("1+" * 2000 + "1"), task("?", answer="2001"))
    assert found.parts["undecided"] == 1


@needs_isolation
def test_an_answer_of_two_thousand_characters_is_compared_and_a_longer_one_is_not():
    wanted = task("?", answer="2")
    assert score("symbolic", episode("1+1" + " " * 1997), wanted, seconds=60.0).parts == {"correct": 1, "undecided": 0}
    assert score("symbolic", episode("1+1" + " " * 1998), wanted, seconds=60.0).parts == {"correct": 0, "undecided": 1}


def test_an_answer_that_is_there_word_for_word_needs_no_sandbox():
    assert score("symbolic", episode("Rome."), task("?", answer="rome"), sandbox="no such").value == 1
    assert score("symbolic", episode("  "), task("?", answer="rome"), sandbox="no such").value == 0
    cut = episode("Rome", ended=EndReason.MAX_TOKENS)
    assert score("symbolic", cut, task("?", answer="rome"), sandbox="no such").parts == {"correct": 0, "undecided": 0}


@needs_isolation
def test_a_task_whose_answer_is_none_says_nothing_of_the_agent():
    with pytest.raises(ValueError, match="is no mathematics"):
        score("symbolic", episode("3"), task("?", answer="§"))


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(symbolic, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"symbolic needs Math-Verify: pip install 'math-verify"):
        Symbolic()
