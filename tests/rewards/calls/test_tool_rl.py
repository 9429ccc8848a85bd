"""Worked numbers and bounds of ToolRL, and intended differences from its code."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rewards import episode, score, task, turn
from whetstone.rewards.calls.canonical import Call
from whetstone.rewards.calls.tool_rl import call_correctness, matches_gold_calls, multiset_overlap, tagged_format

GOLD = Call("get_weather", {"city": "Paris", "unit": "C"})
TASK = task("?", calls=[{"name": "get_weather", "arguments": {"city": "Paris", "unit": "C"}}])
DATA = Path(__file__).parents[4] / "shared" / "data" / "toolrl" / "rlla_sft.json"


def test_worked_numbers():
    assert call_correctness([Call("get_weather", {"city": "Paris", "unit": "F"})], [GOLD]) == pytest.approx(1.5)
    assert call_correctness([Call("get_weather", {"city": "Paris", "unit": "C", "x": 1})], [GOLD]) == pytest.approx(2.5)
    assert call_correctness([GOLD, Call("now", {})], [GOLD]) == pytest.approx(2.25)
    assert call_correctness([Call("weather", {"city": "Paris", "unit": "C"})], [GOLD]) == -3
    assert call_correctness([GOLD], [GOLD]) == 3
    assert call_correctness([], [GOLD]) == -3


def test_overlap_of_empty_sets():
    assert multiset_overlap([], []) == 1
    assert multiset_overlap(["a"], []) == 0
    assert multiset_overlap(["a", "a"], ["a"]) == 0.5


CALLS = st.lists(
    st.builds(
        Call,
        st.sampled_from("ab"),
        st.dictionaries(st.sampled_from("xyz"), st.integers(0, 2), max_size=3),
    ),
    max_size=4,
)


@given(CALLS, CALLS)
def test_optimal_assignment_is_no_worse_than_a_greedy_one(calls, gold):
    best, greedy = (call_correctness(calls, gold, assignment=how) for how in ("optimal", "greedy"))
    assert -3 <= greedy <= best + 1e-9
    assert best <= 3


@given(CALLS)
def test_same_calls_in_any_order_have_the_maximum(gold):
    if gold:
        assert call_correctness(gold[::-1], gold) == pytest.approx(3)
    assert matches_gold_calls(gold[::-1], gold)


@given(CALLS, CALLS)
def test_coarser_matches_score_less(calls, gold):
    by_parameter, by_call = (call_correctness(calls, gold, match=match) for match in ("parameters", "call"))
    assert by_call <= by_parameter + 1e-9


def weather(**arguments):
    return episode(turn("", ("get_weather", arguments)), "sunny")


def test_an_episode():
    right = score("tool_rl", weather(city="Paris", unit="C"), TASK)
    assert (right.value, right.success, right.parts["format"]) == (4, True, 1)
    half = score("tool_rl", weather(city="Paris", unit="F"), TASK)
    assert (half.value, half.success) == (pytest.approx(2.5), False)
    assert score("tool_rl", weather(city="Paris", unit="F"), TASK, match="exact").value == -2
    assert score("tool_rl", episode("sunny"), TASK).value == -3
    assert score("tool_rl", weather(city="Paris", unit="F"), TASK, size=1, format_weight=0).value == pytest.approx(0.5)


def test_malformed_call_has_no_format_reward():
    broken = episode(
        turn("<tool_call>{", malformed=["<tool_call>{"]), turn("", ("get_weather", {"city": "Paris", "unit": "C"}))
    )
    result = score("tool_rl", broken, TASK)
    assert (result.parts["format"], result.success, result.value) == (0, False, 3)


def test_call_has_the_minimum_if_none_is_expected():
    nothing = task("?", calls=[])
    assert score("tool_rl", episode("hello"), nothing).value == 1
    assert score("tool_rl", episode("hello"), nothing).success
    assert score("tool_rl", weather(city="Paris"), nothing).value == -3


def test_tags_are_ordered_as_in_the_gold_text():
    gold = "<think> x </think>\n<tool_call>\n{}\n</tool_call>"
    assert tagged_format("<think> y </think>\n<tool_call>\n{1}\n</tool_call>", gold)
    assert not tagged_format("<tool_call>\n{1}\n</tool_call>", gold)
    assert not tagged_format("<think> y </think>\n<tool_call>\n1\n</tool_call>\n<tool_call>\n2\n</tool_call>", gold)
    assert tagged_format("<think>y</think>", "<think>only</think>")
    both = "<think>x</think>\n<tool_call>\n{}\n</tool_call>\n<response>hi</response>"
    assert tagged_format(both, both)
    assert not tagged_format("<think>x</think>\n<response>hi</response>\n<tool_call>\n{}\n</tool_call>", both)


@pytest.mark.skipif(not DATA.is_file(), reason=f"ToolRL's dialogues are missing: put {DATA.name} into {DATA.parent}")
def test_every_published_gold_text_has_the_maximum():
    rows = json.loads(DATA.read_text())[:400]
    gold_texts = [row["output"] for row in rows]
    assert [text for text in gold_texts if not tagged_format(text, text)] == []
    for text in gold_texts:
        after_thought = text.partition("</think>")[2]
        if "<tool_call>" in after_thought:
            inside = after_thought.partition("<tool_call>")[2].partition("</tool_call>")[0]
            calls = [json.loads(line) for line in inside.strip().splitlines()]
            gold = [Call(call["name"], call["parameters"]) for call in calls]
            assert call_correctness(gold, gold) == pytest.approx(3)
            assert call_correctness(gold[:-1], gold) < 3
