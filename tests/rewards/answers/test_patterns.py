"""Patterns, JSON and stated confidence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_rewards import episode, score, task, turn
from whetstone.rewards.answers.confidence import brier_paid, separated_paid, stated_confidence
from whetstone.trajectory import EndReason


def test_a_pattern_must_match_all_of_the_answer():
    assert score("pattern", episode(" 42 "), task("?", pattern=r"\d+")).success
    assert not score("pattern", episode("42 or 43"), task("?", pattern=r"\d+")).success
    assert score("pattern", episode("42 or 43"), task("?"), pattern=r"\d+", whole=False).success
    assert not score(
        "pattern", episode(turn("", ("t", {})), ended=EndReason.MAX_TURNS), task("?", pattern=".*")
    ).success
    with pytest.raises(ValueError, match="no regular expression"):
        score("pattern", episode("x"), task("?", pattern="("))


def test_a_match_that_would_take_for_ever_is_none():
    found = score("pattern", episode("a" * 40 + "!"), task("?", pattern=r"(a|a|aa)+$(?<=x)"))
    assert not found.success
    found = score("pattern", episode("a" * 3000 + "!"), task("?", pattern=r"(.*a){20}b"))
    assert (found.success, found.parts["undecided"]) == (False, 1)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("said", "parses", "fits", "right"),
    [
        ('{"n": 3}', 1, 1, 1),
        ('```json\n{"n": 3}\n```', 1, 1, 1),
        ('{"n": 4}', 1, 1, 0),
        ('{"n": true}', 1, 0, 0),
        ("[1]", 1, 0, 0),
        ('the answer is {"n": 3}', 0, 0, 0),
        ("[" * 100_000, 0, 0, 0),
    ],
)
def test_json(said, parses, fits, right):
    found = score("json_answer", episode(said), task("?", schema=SCHEMA, value={"n": 3}))
    assert found.parts == {"parses": parses, "fits": fits, "correct": right}
    assert found.success is bool(right)


def test_a_schema_that_is_none():
    with pytest.raises(ValueError, match="the schema is none"):
        score("json_answer", episode("3"), task("?"), schema={"type": "nothing"})


def test_worked_numbers_of_confidence():
    assert [separated_paid(right, 0.2, 1, 1) for right in (False, True)] == pytest.approx([-0.04, 1.36])
    assert [separated_paid(right, 0.9, 1, 1) for right in (False, True)] == pytest.approx([-0.81, 1.99])
    assert brier_paid(True, 0.2) == pytest.approx(0.36)
    assert brier_paid(False, 0.0) == 0


@given(st.floats(0, 1), st.floats(0, 1))
def test_every_right_answer_is_one_or_more_above_every_wrong_one(right, wrong):
    assert separated_paid(True, right) >= 1 + separated_paid(False, wrong) - 1e-12


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("Rome. Confidence: 0.8", 0.8),
        ("confidence = 80%", 0.8),
        ("**Confidence:** .5", 0.5),
        ("Confidence: 1", 1.0),
        ("Confidence: 8", None),
        ("I am sure", None),
        ("confidence: 0.2 … no, confidence: 0.9", 0.9),
    ],
)
def test_what_was_said(said, wanted):
    assert stated_confidence(episode(said)) == wanted


def test_a_confidence_given_to_a_call():
    assert stated_confidence(episode(turn("", ("submit", {"answer": "x", "confidence": 0.3})))) == 0.3
    assert stated_confidence(episode(turn("", ("submit", {"answer": "x", "confidence": True})))) is None
    assert stated_confidence(episode()) is None


def test_one_that_is_not_said_is_not_one_half():
    given = task("?", answer="Rome")
    assert score("calibrated", episode("Rome"), given, missing=-1.0).value == -1
    of_number = task("?", answer="7")
    sure = score(
        "calibrated",
        episode(turn("", ("submit", {"answer": "7", "confidence": 0.9})), ended=EndReason.TOOL_STOPPED),
        of_number,
    )
    assert (sure.value, sure.success) == (pytest.approx(1 + 0.5 * 0.99), True)
