"""Calls are rewarded by their similarity to the calls of an expert, each of which matches once."""

import asyncio
import json

import numpy as np
import pytest

from whetstone.chat import Message, Text, ToolCall, assistant, user
from whetstone.rewards import exact_number, matched_calls, provided_columns
from whetstone.rewards.calls.matched_calls import assign_rewards, call_similarity
from whetstone.trajectory import Author, EndReason, Task, Tokens, Trajectory, Turn

NOTHING = Tokens.from_ids([], Author.ENVIRONMENT)
GOLD = [{"name": "search", "arguments": {"q": "x", "k": 3}}, {"name": "open", "arguments": {"url": "u"}}]
TASK = Task("t", "?", {"answer": 7, "calls": GOLD})


def search(**arguments):
    return ToolCall("search", json.dumps(arguments))


def episode(*turns):
    """Build a trajectory; each turn is a list of calls or an answer."""
    built_turns = []
    for content in turns:
        message = assistant(content) if isinstance(content, str) else Message("assistant", (Text(""),), tuple(content))
        built_turns.append(Turn(NOTHING, NOTHING, message))
    return Trajectory("a", "t", (user("?"),), tuple(built_turns), EndReason.TERMINATED)


def score_turns(*turns, **options):
    return asyncio.run(matched_calls(episode(*turns), TASK, **options))


def test_similarity():
    gold = ("search", {"q": "x", "k": 3})
    assert call_similarity(("search", {"q": "x", "k": 5}), gold) == 0.75
    assert call_similarity(("search", {"q": "x"}), gold) == 0.625
    assert call_similarity(("Search", {"q": "x", "k": 3}), gold) == 1
    assert call_similarity(("open", {"q": "x", "k": 3}), gold) == 0
    assert call_similarity(("anything", {}), ("", {})) == 1  # without a name: any tool


def test_greedy_and_optimal():
    similarity = np.array([[0.9, 0.8], [0.8, 0.0]])
    assert assign_rewards(similarity).tolist() == [0.9, 0]
    assert assign_rewards(similarity, how="optimal").tolist() == [0.8, 0.8]


def test_transport():
    result = assign_rewards(np.array([[0.75, 0], [0, 1]]), how="transport")
    assert result.tolist() == pytest.approx([0.374941, 0.499921], abs=1e-5)
    result = assign_rewards(np.array([[0.625, 0], [1, 0]]), how="transport")
    assert result.tolist() == pytest.approx([0.041551, 0.433518], abs=1e-5)


def test_no_calls_or_no_gold_calls():
    assert assign_rewards(np.zeros((0, 2))).tolist() == []
    assert assign_rewards(np.zeros((2, 0)), how="transport").tolist() == [0, 0]


def test_turns_of_an_episode():
    opened = ToolCall("open", '{"url": "u"}')
    result = score_turns([search(q="x", k=5)], [opened], "It is 7")
    assert result.turns == (0.75, 1.0, 1.0)
    assert result.signals == {"matched": (0, 1, 1), "progress": (0, 0, 0.5)}
    assert result.parts["action_rewards"] == 0.5
    result = score_turns([search(q="x")], [search(q="x", k=3)], "It is 8")
    assert result.turns == (0, 1, 0)  # the gold call is given to the one that fits
    assert result.value == 0


def test_repeated_call_matches_once():
    result = score_turns([search(q="x", k=3)], [search(q="x", k=3)], "7")
    assert result.turns == (1, 0, 1)
    assert result.parts["action_rewards"] == 0.5


def test_calls_of_one_turn_share_its_reward_and_unreadable_arguments_match_nothing():
    result = score_turns([search(q="x", k=3), ToolCall("open", "not json")], "7")
    assert result.turns == (pytest.approx((1 + (1 + 0) / 3) / 2), 1)
    assert result.signals["matched"] == (0, 1)


def test_provided_columns():
    assert provided_columns(matched_calls) == {"process_rewards", "action_rewards", "matched", "progress"}
    assert provided_columns(exact_number) == frozenset()
