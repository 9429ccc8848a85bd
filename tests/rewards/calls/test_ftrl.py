"""Worked numbers of FTRL."""

import pytest

from support.rewards import episode, score, task, turn
from whetstone.rewards.calls.ftrl import contains_golden_answer, episode_rates, step_reward
from whetstone.trajectory import EndReason

TASK = task("?", answers={"find": ["Paris", "1,200"], "look": ["10"]}, answer="blue")


def test_worked_numbers():
    assert step_reward(1, 2) == pytest.approx(2 / 3)
    assert step_reward(1, 1) == 1
    assert [step_reward(2, 3, form=form) for form in ("f1", "product", "precision", "hits")] == pytest.approx(
        [1, 4 / 3, 2 / 3, 2]
    )
    assert episode_rates(2, 4, 3) == {"call_precision": 0.5, "call_f1": pytest.approx(4 / 7)}
    assert episode_rates(0, 0, 3)["call_precision"] == 1


def test_turns_are_rewarded_for_open_calls():
    result = score(
        "ftrl",
        episode(
            turn(
                "", ("find", {}), ("find", {}), back=["It is Paris.", "Paris again"]
            ),  # 1 hit of 2: it is closed afterwards
            turn("", ("look", {}), back=["100"]),  # 10 is not in 100
            turn("", ("look", {}), back=["there are 10 of them"]),
            "blue",
        ),
        TASK,
    )
    assert result.turns == pytest.approx((2 / 3, 0, 1, 1 / 2))  # one is still open when it answers
    assert (result.success, result.parts["solved_share"]) == (True, pytest.approx(2 / 3))


def test_turns_without_a_call():
    silent, stray, early = episode(turn("")), episode(turn("<x>", malformed=["<x>"])), episode("it is blue")
    assert [score("ftrl", one, TASK).turns[0] for one in (silent, stray, early)] == [-0.5, -0.3, 0.25]
    done = task("?", answers={}, answer="blue")
    assert score("ftrl", episode("no idea"), done).turns == (0.5,)


def test_truncated_turn_has_no_reward():
    assert score("ftrl", episode("it is blue", ended=EndReason.MAX_TOKENS), TASK).turns == (0,)


def test_answer_parts_and_words():
    assert (
        contains_golden_answer("It was 1200 and Paris", "1,200, Paris") is False
    )  # commas separate parts, as published
    assert contains_golden_answer("Paris and Rome", "Paris, Rome")
    assert not contains_golden_answer("Parisian", "Paris")
    assert contains_golden_answer("Parisian", "Paris", substring=True)
    assert contains_golden_answer("about 3.5 km", "3.5")
    assert not contains_golden_answer("about 13.5 km", "3.5")
    assert not contains_golden_answer("anything", "")
