"""Mathematical answers are compared symbolically; no answer can hang the comparison."""

import pytest

from support.rewards import episode, score, task
from support.sandbox import needs_isolation
from whetstone.errors import RecipeError
from whetstone.rewards.answers import symbolic
from whetstone.rewards.answers.symbolic import Symbolic
from whetstone.trajectory import EndReason

pytest.importorskip("math_verify", reason="Math-Verify is not installed: pip install -e '.[math]'")


@needs_isolation
@pytest.mark.parametrize(
    ("text", "wanted", "right"),
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
def test_equivalent_answers(text, wanted, right):
    result = score("symbolic", episode(text), task("?", answer=wanted))
    assert (result.value, result.success) == (float(right), right)
    assert result.parts == {"correct": float(right), "undecided": 0.0}


@needs_isolation
def test_comparison_that_takes_too_long_is_wrong_and_counted():
    result = score("symbolic", episode("9^{9^{9^{9^{9}}}}"), task("?", answer="2"), seconds=1.0)
    assert (result.value, result.success) == (0, False)
    assert result.parts == {"correct": 0, "undecided": 1}
    result = score("symbolic", episode("1+" * 2000 + "1"), task("?", answer="2001"))
    assert result.parts["undecided"] == 1


@needs_isolation
def test_answers_up_to_two_thousand_characters_are_compared():
    wanted = task("?", answer="2")
    assert score("symbolic", episode("1+1" + " " * 1997), wanted, seconds=60.0).parts == {"correct": 1, "undecided": 0}
    assert score("symbolic", episode("1+1" + " " * 1998), wanted, seconds=60.0).parts == {"correct": 0, "undecided": 1}


def test_literally_equal_answer_needs_no_sandbox():
    assert score("symbolic", episode("Rome."), task("?", answer="rome"), sandbox="no such").value == 1
    assert score("symbolic", episode("  "), task("?", answer="rome"), sandbox="no such").value == 0
    cut = episode("Rome", ended=EndReason.MAX_TOKENS)
    assert score("symbolic", cut, task("?", answer="rome"), sandbox="no such").parts == {"correct": 0, "undecided": 0}


@needs_isolation
def test_task_with_an_invalid_answer_is_no_failure_of_the_agent():
    with pytest.raises(ValueError, match="cannot be parsed as mathematics"):
        score("symbolic", episode("3"), task("?", answer="§"))


def test_missing_library_is_reported_with_the_install_command(monkeypatch):
    monkeypatch.setattr(symbolic, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"symbolic needs Math-Verify: pip install 'math-verify"):
        Symbolic()
