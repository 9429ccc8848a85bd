"""Rewards for patterns, JSON and stated confidence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rewards import episode, score, task, turn
from whetstone.errors import RecipeError
from whetstone.rewards.answers.confidence import brier_score, separated_score, stated_confidence
from whetstone.trajectory import EndReason, Score


def test_pattern_must_match_the_full_answer():
    assert score("pattern", episode(" 42 "), task("?", pattern=r"\d+")).success
    assert not score("pattern", episode("42 or 43"), task("?", pattern=r"\d+")).success
    assert score("pattern", episode("42 or 43"), task("?"), pattern=r"\d+", full_match=False).success
    assert not score(
        "pattern", episode(turn("", ("t", {})), ended=EndReason.MAX_TURNS), task("?", pattern=".*")
    ).success
    with pytest.raises(ValueError, match="not a regular expression"):
        score("pattern", episode("x"), task("?", pattern="("))


@pytest.mark.slow
def test_match_that_takes_too_long_is_no_match():
    result = score("pattern", episode("a" * 40 + "!"), task("?", pattern=r"(a|a|aa)+$(?<=x)"))
    assert not result.success
    result = score("pattern", episode("a" * 3000 + "!"), task("?", pattern=r"(.*a){20}b"))
    assert (result.success, result.parts["undecided"]) == (False, 1)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_pattern_of_the_recipe_precedes_the_tasks_and_dot_matches_any_character():
    assert score("pattern", episode("a\nb"), task("?", pattern="x"), pattern="a.b").parts == {
        "matches": 1,
        "undecided": 0,
    }
    assert (
        score("pattern", episode(" a "), task("?", pattern=" a "), full_match=False).value == 0
    )  # bare of white space
    result = score("pattern", episode(turn("", ("t", {})), ended=EndReason.MAX_TURNS), task("?", pattern=".*"))
    assert (result.value, result.parts) == (0, {"matches": 0, "undecided": 0})
    with pytest.raises(ValueError, match=r"'\(' is not a regular expression: missing"):
        score("pattern", episode("x"), task("?", pattern="("))


@pytest.mark.parametrize(
    ("text", "parses", "fits", "right"),
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
def test_json(text, parses, fits, right):
    result = score("json_answer", episode(text), task("?", schema=SCHEMA, value={"n": 3}))
    assert result.parts == {"parses": parses, "fits": fits, "correct": right}
    assert result.success is bool(right)


def test_invalid_schema_is_refused():
    with pytest.raises(RecipeError, match="schema: is not a JSON Schema: 'nothing' is not valid"):
        score("json_answer", episode("3"), task("?"), schema={"type": "nothing"})


def test_schema_of_the_recipe_precedes_the_tasks_and_without_one_any_json_fits():
    text = {"type": "string"}
    assert score("json_answer", episode('"x"'), task("?", schema=SCHEMA), schema=text).parts["fits"] == 1
    assert score("json_answer", episode('{"n": 3}'), task("?", schema=SCHEMA), schema=text).parts["fits"] == 0
    for json_text in ("3", "[]", '"x"'):
        assert score("json_answer", episode(json_text), task("?")).success
    assert score("json_answer", episode("[]"), task("?"), schema={}).success
    assert score("json_answer", episode("[]", ended=EndReason.MAX_TURNS), task("?")).parts["parses"] == 0
    assert score("json_answer", episode("true"), task("?", value=1)).value == 0


def test_confidence_worked_numbers():
    assert [separated_score(right, 0.2, 1, 1) for right in (False, True)] == pytest.approx([-0.04, 1.36])
    assert [separated_score(right, 0.9, 1, 1) for right in (False, True)] == pytest.approx([-0.81, 1.99])
    assert brier_score(True, 0.2) == pytest.approx(0.36)
    assert brier_score(False, 0.0) == 0


@given(st.floats(0, 1), st.floats(0, 1))
def test_correct_answers_score_at_least_one_more_than_wrong_ones(right, wrong):
    assert separated_score(True, right) >= 1 + separated_score(False, wrong) - 1e-12


@pytest.mark.parametrize(
    ("text", "wanted"),
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
def test_stated_confidence_is_parsed(text, wanted):
    assert stated_confidence(episode(text)) == wanted


def test_confidence_in_a_call_is_read():
    assert stated_confidence(episode(turn("", ("submit", {"answer": "x", "confidence": 0.3})))) == 0.3
    assert stated_confidence(episode(turn("", ("submit", {"answer": "x", "confidence": True})))) is None
    assert stated_confidence(episode()) is None


@pytest.mark.parametrize(
    ("argument", "wanted"), [(1, 1.0), (0, 0.0), (1.01, None), (-0.01, None), ("0.3", 0.6), (None, 0.6)]
)
def test_confidence_of_a_call_is_a_number_or_that_of_the_text_counts(argument, wanted):
    words = "confidence: 0.6"
    assert stated_confidence(episode(turn(words, ("submit", {"confidence": argument})))) == wanted


def test_first_confidence_of_several_calls_in_the_last_turn_counts():
    calls = turn("", ("note", {"x": 1}), ("submit", {"confidence": 0.3}), ("submit", {"confidence": 0.4}))
    assert stated_confidence(episode("confidence: 0.9", calls)) == 0.3
    assert stated_confidence(episode(calls, "I am sure")) is None


def test_missing_confidence_is_not_one_half():
    problem = task("?", answer="Rome")
    assert score("calibrated", episode("Rome"), problem, missing=-1.0).value == -1
    of_number = task("?", answer="7")
    sure = score(
        "calibrated",
        episode(turn("", ("submit", {"answer": "7", "confidence": 0.9})), ended=EndReason.TOOL_STOPPED),
        of_number,
    )
    assert (sure.value, sure.success) == (pytest.approx(1 + 0.5 * 0.99), True)


def score_confidence(text, **options):
    result = score("calibrated", episode(text), task("?", answer="Rome"), **options)
    return result.value, result.parts, result.success


def test_wrong_answer_worked_numbers():
    # wrong with .8: −½ · .64, or −.64
    words = "Oslo, confidence: 0.8"
    parts = {"correct": 0, "f1": 0, "confidence_said": 1, "confidence": 0.8}
    assert score_confidence(words) == (pytest.approx(-0.32), parts, False)
    assert score_confidence(words, wrong_size=2.0) == (pytest.approx(-1.28), parts, False)
    assert score_confidence(words, form="brier") == (pytest.approx(-0.64), parts, False)


def test_correct_answer_worked_numbers():
    # the outcome decides; with .8: 1 + b (1 − .04), or 1 − .04
    async def outcome(trajectory, problem):
        return Score(5.0, {"why": 1.0}, success=True)

    parts = {"why": 1, "confidence_said": 1, "confidence": 0.8}
    assert score_confidence("confidence: 0.8", outcome=outcome) == (pytest.approx(1.48), parts, True)
    assert score_confidence("confidence: 0.8", outcome=outcome, right_size=2.0)[0] == pytest.approx(2.92)
    assert score_confidence("confidence: 0.8", outcome=outcome, form="brier")[0] == pytest.approx(0.96)
    assert score_confidence("I do not say", outcome=outcome, missing=-3.0) == (
        -3,
        {"why": 1, "confidence_said": 0},
        True,
    )


def test_default_sizes_are_one_half():
    assert (separated_score(True, 1.0), separated_score(False, 1.0)) == (1.5, -0.5)
