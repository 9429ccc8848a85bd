"""Patterns, JSON and stated confidence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_rewards import episode, score, task, turn
from whetstone.errors import RecipeError
from whetstone.rewards.answers.confidence import brier_paid, separated_paid, stated_confidence
from whetstone.trajectory import EndReason, Score


def test_a_pattern_must_match_all_of_the_answer():
    assert score("pattern", episode(" 42 "), task("?", pattern=r"\d+")).success
    assert not score("pattern", episode("42 or 43"), task("?", pattern=r"\d+")).success
    assert score("pattern", episode("42 or 43"), task("?"), pattern=r"\d+", full_match=False).success
    assert not score(
        "pattern", episode(turn("", ("t", {})), ended=EndReason.MAX_TURNS), task("?", pattern=".*")
    ).success
    with pytest.raises(ValueError, match="no regular expression"):
        score("pattern", episode("x"), task("?", pattern="("))


@pytest.mark.slow
def test_a_match_that_would_take_for_ever_is_none():
    found = score("pattern", episode("a" * 40 + "!"), task("?", pattern=r"(a|a|aa)+$(?<=x)"))
    assert not found.success
    found = score("pattern", episode("a" * 3000 + "!"), task("?", pattern=r"(.*a){20}b"))
    assert (found.success, found.parts["undecided"]) == (False, 1)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_a_pattern_of_the_recipe_goes_before_the_tasks_and_a_dot_is_any_character():
    assert score("pattern", episode("a\nb"), task("?", pattern="x"), pattern="a.b").parts == {
        "matches": 1,
        "undecided": 0,
    }
    assert (
        score("pattern", episode(" a "), task("?", pattern=" a "), full_match=False).value == 0
    )  # bare of white space
    found = score("pattern", episode(turn("", ("t", {})), ended=EndReason.MAX_TURNS), task("?", pattern=".*"))
    assert (found.value, found.parts) == (0, {"matches": 0, "undecided": 0})
    with pytest.raises(ValueError, match=r"'\(' is no regular expression: missing"):
        score("pattern", episode("x"), task("?", pattern="("))


@pytest.mark.parametrize(
    ("said", "parses", "fits", "right"),
    [
        ('```\n{"n": 3}\n```', 1, 1, 1),
        ('  {"n": 3}  ', 1, 1, 1),
        ('```json\n{"n": 3}', 0, 0, 0),
        ('{"n": 3}```', 0, 0, 0),
        ('{"n": 3.0}', 1, 1, 1),
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
    with pytest.raises(RecipeError, match="schema: is no JSON Schema: 'nothing' is not valid"):
        score("json_answer", episode("3"), task("?"), schema={"type": "nothing"})


def test_a_schema_of_the_recipe_goes_before_the_tasks_and_without_any_all_json_fits():
    text = {"type": "string"}
    assert score("json_answer", episode('"x"'), task("?", schema=SCHEMA), schema=text).parts["fits"] == 1
    assert score("json_answer", episode('{"n": 3}'), task("?", schema=SCHEMA), schema=text).parts["fits"] == 0
    for said in ("3", "[]", '"x"'):
        assert score("json_answer", episode(said), task("?")).success
    assert score("json_answer", episode("[]"), task("?"), schema={}).success
    assert score("json_answer", episode("[]", ended=EndReason.MAX_TURNS), task("?")).parts["parses"] == 0
    assert score("json_answer", episode("true"), task("?", value=1)).value == 0


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
        ("CONFIDENCE 80 %", 0.8),
        ("confidence: 100%", 1.0),
        ("confidence: 0", 0.0),
        ("confidence: 101%", None),
        ("confidence of course 0.8", None),
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


@pytest.mark.parametrize(
    ("given", "wanted"), [(1, 1.0), (0, 0.0), (1.01, None), (-0.01, None), ("0.3", 0.6), (None, 0.6)]
)
def test_a_confidence_given_to_a_call_is_a_number_or_that_of_the_words_counts(given, wanted):
    words = "confidence: 0.6"
    assert stated_confidence(episode(turn(words, ("submit", {"confidence": given})))) == wanted


def test_of_several_calls_the_first_with_a_confidence_says_it_and_only_the_last_turn_counts():
    calls = turn("", ("note", {"x": 1}), ("submit", {"confidence": 0.3}), ("submit", {"confidence": 0.4}))
    assert stated_confidence(episode("confidence: 0.9", calls)) == 0.3
    assert stated_confidence(episode(calls, "I am sure")) is None


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


def sure_of(said, **options):
    found = score("calibrated", episode(said), task("?", answer="Rome"), **options)
    return found.value, found.parts, found.success


def test_worked_numbers_of_an_episode():
    # wrong with .8: −½ · .64, or −.64
    words = "Oslo, confidence: 0.8"
    parts = {"correct": 0, "f1": 0, "confidence_said": 1, "confidence": 0.8}
    assert sure_of(words) == (pytest.approx(-0.32), parts, False)
    assert sure_of(words, wrong_size=2.0) == (pytest.approx(-1.28), parts, False)
    assert sure_of(words, form="brier") == (pytest.approx(-0.64), parts, False)


def test_worked_numbers_of_a_right_episode():
    # the outcome says so; with .8: 1 + b (1 − .04), or 1 − .04
    async def outcome(trajectory, given):
        return Score(5.0, {"why": 1.0}, success=True)

    parts = {"why": 1, "confidence_said": 1, "confidence": 0.8}
    assert sure_of("confidence: 0.8", outcome=outcome) == (pytest.approx(1.48), parts, True)
    assert sure_of("confidence: 0.8", outcome=outcome, right_size=2.0)[0] == pytest.approx(2.92)
    assert sure_of("confidence: 0.8", outcome=outcome, form="brier")[0] == pytest.approx(0.96)
    assert sure_of("I do not say", outcome=outcome, missing=-3.0) == (-3, {"why": 1, "confidence_said": 0}, True)


def test_sizes_are_one_half_where_nothing_is_said():
    assert (separated_paid(True, 1.0), separated_paid(False, 1.0)) == (1.5, -0.5)
