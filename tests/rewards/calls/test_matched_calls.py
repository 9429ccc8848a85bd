"""Calls are paid for by how well they match an expert's, each of those once."""

import asyncio
import json

import numpy as np
import pytest

from whetstone.chat import Message, Text, ToolCall, assistant, user
from whetstone.rewards import exact_number, matched_calls, provided_by
from whetstone.rewards.calls.matched_calls import assigned, call_similarity
from whetstone.trajectory import Author, EndReason, Task, Tokens, Trajectory, Turn

NOTHING = Tokens.written([], Author.ENVIRONMENT)
GOLD = [{"name": "search", "arguments": {"q": "x", "k": 3}}, {"name": "open", "arguments": {"url": "u"}}]
TASK = Task("t", "?", {"answer": 7, "calls": GOLD})


def search(**arguments):
    return ToolCall("search", json.dumps(arguments))


def episode(*turns):
    """Each turn is a list of calls, or an answer."""
    made = []
    for said in turns:
        message = assistant(said) if isinstance(said, str) else Message("assistant", (Text(""),), tuple(said))
        made.append(Turn(NOTHING, NOTHING, message))
    return Trajectory("a", "t", (user("?"),), tuple(made), EndReason.TERMINATED)


def said(*turns, **options):
    return asyncio.run(matched_calls(episode(*turns), TASK, **options))


def test_similarity():
    gold = ("search", {"q": "x", "k": 3})
    assert call_similarity(("search", {"q": "x", "k": 5}), gold) == 0.75
    assert call_similarity(("search", {"q": "x"}), gold) == 0.625
    assert call_similarity(("Search", {"q": "x", "k": 3}), gold) == 1
    assert call_similarity(("open", {"q": "x", "k": 3}), gold) == 0
    assert call_similarity(("anything", {}), ("", {})) == 1  # no name: any tool's


def test_greedy_and_optimal():
    similarity = np.array([[0.9, 0.8], [0.8, 0.0]])
    assert assigned(similarity).tolist() == [0.9, 0]
    assert assigned(similarity, how="optimal").tolist() == [0.8, 0.8]


def test_transport():
    found = assigned(np.array([[0.75, 0], [0, 1]]), how="transport")
    assert found.tolist() == pytest.approx([0.374941, 0.499921], abs=1e-5)
    found = assigned(np.array([[0.625, 0], [1, 0]]), how="transport")
    assert found.tolist() == pytest.approx([0.041551, 0.433518], abs=1e-5)


def test_no_calls_or_no_gold_calls():
    assert assigned(np.zeros((0, 2))).tolist() == []
    assert assigned(np.zeros((2, 0)), how="transport").tolist() == [0, 0]


def test_turns_of_an_episode():
    opened = ToolCall("open", '{"url": "u"}')
    found = said([search(q="x", k=5)], [opened], "It is 7")
    assert found.turns == (0.75, 1.0, 1.0)
    assert found.signals == {"matched": (0, 1, 1), "progress": (0, 0, 0.5)}
    assert found.parts["action_rewards"] == 0.5
    found = said([search(q="x")], [search(q="x", k=3)], "It is 8")
    assert found.turns == (0, 1, 0)  # the gold call is given to the one that fits
    assert found.value == 0


def test_a_call_repeated_is_one_good_call():
    found = said([search(q="x", k=3)], [search(q="x", k=3)], "7")
    assert found.turns == (1, 0, 1)
    assert found.parts["action_rewards"] == 0.5


def test_several_calls_of_a_turn_share_it_and_unreadable_arguments_match_nothing():
    found = said([search(q="x", k=3), ToolCall("open", "not json")], "7")
    assert found.turns == (pytest.approx((1 + (1 + 0) / 3) / 2), 1)
    assert found.signals["matched"] == (0, 1)


def test_it_says_what_it_provides():
    assert provided_by(matched_calls) == {"process_rewards", "action_rewards", "matched", "progress"}
    assert provided_by(exact_number) == frozenset()
