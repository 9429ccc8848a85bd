"""Worked numbers of every reward: value, parts, turns, signals and success."""

from dataclasses import replace

import pytest

from support.rewards import episode, group, score, task, turn
from whetstone.plugins import OptionError
from whetstone.rewards.efficiency.otc import Otc
from whetstone.rewards.efficiency.user_preferences import UserPreferences
from whetstone.rewards.environment_state.state import state_digest
from whetstone.rewards.gated.milestones import Milestones
from whetstone.rewards.kernels.speedup import Speedup, _same
from whetstone.trajectory import EndReason

ROME = task("?", answer="Rome")
SEVEN = task("?", answer=7)
ALIKE = [{"name": "a", "arguments": {"x": 1}}, {"name": "a", "arguments": {"x": 1, "y": 2}}]
SWAPPED = episode(turn("", ("a", {"x": 1, "y": 2}), ("a", {"x": 5})), "done")
"""The first call fits the second gold one best; the first gold one comes first."""
RIGHT_OF_TWO = task("?", answer=7, calls=[{"arguments": {"q": 1}}, {"name": "open", "arguments": {}}])
FOUND = task("?", answers={"find": ["Paris", "Rome"], "look": ["10"]}, answer="blue")
WITHIN = task("?", answers={"find": ["aris"]}, answer="lu")
TWO_POSSIBLE = task("?", possible_answer=[{"f": {"n": [1]}}, {"f": {"n": [2]}}], functions=[{"name": "f"}])
BROKEN = episode(turn("<x>", malformed=["<x>"]), "Rome")
TRIES = episode("8", turn("", ("t", {})), replace(turn("7"), aside=True), "7", "No, 8", turn("(7)", malformed=["("]))


def two_calls(*, cost=0.0):
    return episode(turn("", ("a", {}), ("b", {}, "tool_error"), cost=cost), "Rome")


EXACT = {"correct": 1.0, "f1": 1.0}
CASES = {
    "executed_calls": ({}, two_calls(), ROME, 1, {"ran": 1, "calls": 2}),
    "executed_calls, a share": ({"partial_credit": True}, two_calls(), ROME, 0.5, {"ran": 1, "calls": 2}),
    "executed_calls, of one tool": (
        {"partial_credit": True, "tools": ["b"]},
        two_calls(),
        ROME,
        0,
        {"ran": 0, "calls": 1},
    ),
    "few_calls": ({}, two_calls(), ROME, 0.75, {"calls": 2}),
    "few_calls, more than most": ({"max_calls": 1}, two_calls(), ROME, 0, {"calls": 2}),
    "few_calls, of one tool": ({"tools": ["a"], "max_calls": 4}, two_calls(), ROME, 0.75, {"calls": 1}),
    "well_formed": ({}, two_calls(), ROME, 1, {"malformed": 0}),
    "well_formed, unreadable": ({}, BROKEN, ROME, 0, {"malformed": 1}),
    "cost_aware": ({"budget": 0.5}, two_calls(cost=0.1), ROME, 0.8, EXACT | {"cost": 0.2, "thrift": 0.8}),
    "cost_aware, for nothing": (
        {"budget": 0.5, "weight": 0.0},
        two_calls(cost=0.1),
        ROME,
        1,
        EXACT | {"cost": 0.2, "thrift": 1},
    ),
    "cost_aware, wrong": (
        {"budget": 0.5},
        two_calls(cost=0.1),
        task("?", answer="Oslo"),
        0,
        {"correct": 0, "f1": 0, "cost": 0.2, "thrift": 1},
    ),
    "fewest_turns": (
        {"brevity": 0.2},
        two_calls(),
        ROME,
        1 + 0.1 + 0.3 + 0.2 * 7 / 8,
        EXACT | {"format": 1, "compact": 1, "turns": 2},
    ),
    "ikea": ({"tools": ["a"]}, two_calls(), ROME, 1.4, EXACT | {"searches": 1, "format": 1}),
    "ikea, unreadable": ({}, BROKEN, ROME, -1, EXACT | {"searches": 0, "format": 0}),
    "self_aware": (
        {},
        two_calls(),
        task("?", answer="Rome", pass_rate_without_tools=0.75),
        0.5,
        EXACT | {"overuse": 1, "underuse": 0},
    ),
    "self_aware, of one tool": (
        {"tools": ["c"], "known_from": 0.8},
        two_calls(),
        task("?", answer="Rome", pass_rate_without_tools=0.75),
        1,
        EXACT | {"overuse": 0, "underuse": 1},
    ),
    "bfcl": ({}, episode(turn("", ("f", {"n": 1}), ("f", {"n": 1}))), TWO_POSSIBLE, 0, {"count": 1, "matched": 0.5}),
    "bfcl, one too few": ({}, episode(turn("", ("f", {"n": 2}))), TWO_POSSIBLE, 0, {"count": 0, "matched": 0.5}),
    "bfcl, none": ({}, episode("no"), TWO_POSSIBLE, 0, {"count": 0, "matched": 0}),
    "bfcl, right": (
        {},
        episode(turn("", ("f", {"n": 2}), ("f", {"n": 1}))),
        TWO_POSSIBLE,
        1,
        {"count": 1, "matched": 1},
    ),
    "ftrl": (
        {},
        episode(
            turn("", ("find", {}), ("other", {}), back=["Paris", "10"]),
            turn("I think of it"),
            turn("", ("find", {}), back=["Rome"]),
            turn("", ("look", {}), back=["10"]),
            "blue",
        ),
        FOUND,
        1,
        {"solved_share": 1, "call_precision": 0.75, "call_f1": 6 / 7},
        (2 / 3, 0, 1, 1, 1),
    ),
    "ftrl, precision": (
        {"form": "precision"},
        episode(turn("", ("find", {}), ("find", {}), back=["Paris", "Oslo"]), turn("", ("look", {})), "red"),
        FOUND,
        0,
        {"solved_share": 1 / 3, "call_precision": 1 / 3, "call_f1": 2 / 6},
        (0.5, 0, 0),
    ),
    "ftrl, within words": (
        {"substring": True},
        episode(turn("", ("find", {}), back=["Paris"]), "blue"),
        WITHIN,
        0,
        {"solved_share": 1, "call_precision": 1, "call_f1": 1},
        (1, 1),
    ),
    "ftrl, word for word": (
        {},
        episode(turn("", ("find", {}), back=["Paris"]), "blue"),
        WITHIN,
        0,
        {"solved_share": 0, "call_precision": 0, "call_f1": 0},
        (0, 0),
    ),
    "tool_rl": ({}, SWAPPED, task("?", calls=ALIKE), 3, {"correctness": 2, "format": 1, "correct": 0}),
    "tool_rl, greedy": (
        {"assignment": "greedy"},
        SWAPPED,
        task("?", calls=ALIKE),
        1,
        {"correctness": 0, "format": 1, "correct": 0},
    ),
    "tool_rl, whole calls": (
        {"match": "call", "format_weight": 0.5},
        SWAPPED,
        task("?", calls=ALIKE),
        1.5,
        {"correctness": 1, "format": 1, "correct": 0},
    ),
    "matched_calls": (
        {},
        episode("let me see", turn("", ("any", {"q": 1}), ("open", {"u": 1})), "let me see", "7"),
        RIGHT_OF_TWO,
        1,
        {"correct": 1, "action_rewards": 0.5},
        (0, (1 + 0.5) / 2, 0, 1),
        {"matched": (0, 0, 0, 1), "progress": (0, 0, 0.5, 0.5)},
    ),
    "attempts": ({}, TRIES, SEVEN, 0, {"first_correct": 0, "last_correct": 0}, (0, 0, 0, 1, 0, 0)),
    "attempts, right in the end": (
        {},
        episode("8", "7"),
        SEVEN,
        0,
        {"first_correct": 0, "last_correct": 1},
        (0, 1),
    ),
    "attempts, cut off": (
        {},
        episode("7", "8, or 7", ended=EndReason.MAX_TOKENS),
        SEVEN,
        0,
        {"first_correct": 1, "last_correct": 0},
        (1, 0),
    ),
    "unary_feedback": ({}, TRIES, SEVEN, 0.5, {"correct": 1, "attempts": 3}),
    "unary_feedback, the same again": (
        {},
        episode("It is 8", "no idea", "it  is 8 ", "7"),
        SEVEN,
        0.5**3 - 0.5 / 3,
        {"correct": 1, "attempts": 4},
    ),
    "unary_feedback, never": ({"repetition": 0.2}, episode("8", "8"), SEVEN, -0.1, {"correct": 0, "attempts": 2}),
    "unary_feedback, silent": ({}, episode("no idea"), SEVEN, 0, {"correct": 0, "attempts": 1}),
}

PAID = (replace(turn("a", ("t", {})), reward=0.25), turn("b"), replace(turn("c"), reward=-1.0))
SAID = {"success": False, "score": 0.5, "solved": 3, "why": "late"}
SPOKEN = {"database": 1, "communicated": 1, "user_ended": 1, "not_judged": 0}
RETURNED = {"success": True, "same": True, "user_ended": True}
ON_THE_WAY = [{"tool": "a"}, {"says": "door", "tool": "b", "arguments": {"x": 1}}, {"says": "gold"}, {"arguments": {}}]
WALK = (
    turn("", ("a", {}), ("b", {"x": 1}), back=["a door", "open"]),
    turn("", ("b", {"x": 2}), back=["gold"]),
    turn("", ("b", {"x": 1}, "tool_error"), back=["door"]),
)
AT = [{"path": "a.0", "value": 1}, {"path": "b", "is": "at_least", "value": 3}]
CASES |= {
    "verdict": ({}, episode(*PAID, final=SAID), ROME, 0, {"success": 0, "score": 0.5, "solved": 3}, (0.25, 0, -1)),
    "verdict, its score": (
        {"pays": "score"},
        episode(*PAID, final=SAID),
        ROME,
        0.5,
        {"success": 0, "score": 0.5, "solved": 3},
        (0.25, 0, -1),
    ),
    "verdict, no score": ({"pays": "score"}, episode("a", final={"success": True}), ROME, 1, {"success": 1}, (0,)),
    "verdict, cut short": (
        {},
        episode(*PAID, ended=EndReason.MAX_TURNS),
        ROME,
        0,
        {"success": 0},
        (0.25, 0, -1),
    ),
    "returns": ({}, episode(*PAID), ROME, -0.75, {"return": -0.75}, (0.25, 0, -1)),
    "tau2": ({}, episode("It is 1,200.", "Bye NOW", final=RETURNED), task(to_say=["1200", "bye, now"]), 1, SPOKEN),
    "tau2, unsaid": (
        {},
        episode("It is", "120", "0", final=RETURNED),
        task(to_say=["1,200", "it is"]),
        0,
        SPOKEN | {"communicated": 0},
    ),
    "tau2, continued": (
        {},
        episode("x", final={"success": True, "same": True}),
        task(to_say=[]),
        0,
        SPOKEN | {"user_ended": 0},
    ),
    "tau2, another state": ({}, episode("x", final={"user_ended": 1}), task(to_say=[]), 0, SPOKEN | {"database": 0}),
    "milestones": (
        {"outcome": "exact_match", "discount": 0.5, "weight": 2.0},
        episode(*WALK),
        task(answer="x", milestones=ON_THE_WAY),
        0,
        {"correct": 0, "f1": 0, "milestones": 0.75},
        (0.5, 2 * (0.375 - 0.5), 2 * (0.375 - 0.75)),
        {"progress": (0, 0.5, 0.75)},
    ),
    "plus_minus_one": ({}, episode("Oslo"), ROME, -1, {"correct": 0, "f1": 0}),
    "tool_star": (
        {"outcome": "exact_match", "measure": "f1", "tools": ["a", "b"], "bonus": 0.25},
        episode(turn("", ("a", {}), ("b", {}), back=["x", "y"]), "Rome it is"),
        ROME,
        0.75,
        {"correct": 0, "f1": 0.5, "format": 1, "accuracy": 0.5, "together": 1},
    ),
    "tool_star, one said nothing": (
        {"outcome": "exact_match", "tools": ["a", "b"], "bonus": 0.25},
        episode(turn("", ("a", {}), ("b", {}), back=["x", " "]), "Rome"),
        ROME,
        1,
        EXACT | {"format": 1, "accuracy": 1, "together": 0},
    ),
    "step_labels": ({}, episode("a", "b"), task(step_labels=[1, 0]), 0.5, {"steps": 0.5, "steps_mean": 0.5}),
    "step_labels, the least": (
        {"together": "min"},
        episode("a", "b"),
        task(step_labels=[1, 0, 1]),
        0,
        {"steps": 0, "steps_mean": 0.5},
    ),
    "state": ({}, episode("a", final={"a": [1], "b": 3}), task(predicates=AT), 1, {"predicates": 1}),
    "state, a share": (
        {"partial_credit": True},
        episode("a", final={"a": [1], "b": 2}),
        task(predicates=AT),
        0.5,
        {"predicates": 0.5},
    ),
    "state, missing paths": ({}, episode("a", final={"a": "1"}), task(predicates=AT), 0, {"predicates": 0}),
    "state, a digest": (
        {"partial_credit": True},
        episode("a", final={"state": {"n": {2, 10, 1}}}),
        task(digest=state_digest({"n": {10, 1.0, 2}})),
        1,
        {"state": 1},
    ),
    "state, another": (
        {"partial_credit": True},
        episode("a", final={"digest": "x", "a": [1], "b": 3}),
        task(digest="y", predicates=AT),
        0,
        {"state": 0, "predicates": 1},
    ),
    "state, the same": ({}, episode("a", final={"digest": "x"}), task(digest="x"), 1, {"state": 1}),
    "state, cut short": ({}, episode("a", ended=EndReason.MAX_TURNS), task(digest="x"), 0, {"state": 0}),
}
"""Rewards of worlds and of steps."""
SUCCEEDED = {"tau2": True, "tau2, unsaid": False, "verdict": False, "verdict, no score": True, "returns": False}
SUCCEEDED |= {"state": True, "state, a share": False, "state, cut short": False, "verdict, cut short": False}
SUCCEEDED |= {
    "plus_minus_one": False,
    "attempts, right in the end": True,
    "attempts": False,
    "unary_feedback, never": False,
}


@pytest.mark.parametrize("case", SUCCEEDED)
def test_success(case):
    options, one, problem, *_ = CASES[case]
    assert score(case.partition(",")[0], one, problem, **options).success is SUCCEEDED[case]


@pytest.mark.parametrize("case", CASES)
def test_worked_score(case):
    options, one, problem, value, parts, *more = CASES[case]
    result = score(case.partition(",")[0], one, problem, **options)
    assert result.value == pytest.approx(value)
    if "correct" not in parts and "correct" in result.parts:
        parts = parts | {"correct": value}
    assert result.parts == pytest.approx(parts)
    if more:
        assert result.turns == pytest.approx(more[0])
    assert result.signals == (more[1] if len(more) > 1 else {})


def test_efficiency_in_a_group():
    episodes = [episode(*[turn("", (name, {}))] * count, "7") for name, count in (("a", 1), ("a", 3), ("b", 9))]
    parts = [one.parts for one in group("otc", episodes[:2], SEVEN, tools=["a"])]
    assert parts[0] == pytest.approx({"correct": 1, "calls": 1, "efficiency": 1})
    assert parts[1] == pytest.approx({"correct": 1, "calls": 3, "efficiency": 0.5**0.5})  # sin(3 π / 4)
    assert group("otc", episodes, SEVEN, tools=["a"])[2].parts["calls"] == 0
    wrong = group("otc", [episode(turn("", ("a", {})), "8")], SEVEN)[0]
    assert wrong.parts == pytest.approx({"correct": 0, "calls": 1, "efficiency": 0.75**0.5})  # cos(π / 6): unknown
    assert wrong.success is False
    with pytest.raises(ValueError, match="smooth must be above 0, got 0"):
        Otc(smooth=0)


def test_user_preferences_with_defaults():
    quick, slow, wrong = (
        replace(episode(turn("", ("a", {}), cost=cost), text), seconds=seconds)
        for text, cost, seconds in (("Rome", 1.0, 2.0), ("Rome", 3.0, 4.0), ("Oslo", 5.0, 6.0))
    )
    result = group("user_preferences", [quick, slow, wrong], ROME)
    assert [one.parts["preference"] for one in result] == pytest.approx([2, 1.5, 0])
    assert [one.value for one in result] == pytest.approx([3, 2.5, 0])
    disliked = group("user_preferences", [quick, slow, wrong], ROME, prefer={"seconds": -1.0, "cost": 0.25})
    assert [one.value for one in disliked] == pytest.approx([2 - 1 + 0.25, 2 - 0.5 + 0.125, 0])
    bounded = group("user_preferences", [quick, slow, wrong], ROME, prefer={"cost": 1.0}, quantile=0.25)
    assert [one.parts["preference"] for one in bounded] == pytest.approx([1, 0.5, 0])
    far = [quick, slow, replace(wrong, turns=(turn("", ("a", {}), cost=100.0), turn("Oslo")))]
    near, clipped = (
        group("user_preferences", far, ROME, prefer={"cost": 1.0}, quantile=q)[1].value for q in (0.0, 0.25)
    )
    assert near == pytest.approx(1 + 97 / 99)
    assert clipped == pytest.approx(1 + 48.5 / 49.5)  # from 2 to 51.5
    with pytest.raises(ValueError, match=r"in \[0, 0\.5\), got 0\.5"):
        UserPreferences(quantile=0.5)
    with pytest.raises(ValueError, match=r"in \[0, 0\.5\), got -0\.1"):
        UserPreferences(quantile=-0.1)


@pytest.mark.parametrize(
    "marker", ["Wait", "alternatively", "hmm", "let me try again", "on second thought", "another approach"]
)
def test_restarting_turn_counts_twice(marker):
    assert score("fewest_turns", episode(turn(f"Oslo. {marker}, no."), "Rome"), ROME).parts["compact"] == 0.5
    own = {"markers": ["no"]}
    assert score("fewest_turns", episode(f"{marker}", "Rome"), ROME, **own).parts["compact"] == 1


def test_equal_outputs():
    pairs = [(1, 1 + 5e-10), (-1e6, -1e6 - 1e-4), ([1, (2,)], ((1), [2.0])), ({"a": [1.0]}, {"a": [1]}), ("x", "x")]
    assert all(_same(one, other, 1e-9) for one, other in [*pairs, (float("inf"), float("inf")), (None, None)])
    different = [(1, 1.1), (1, True), (True, 1), ([1], [1, 2]), ({"a": 1}, {"b": 1}), ({"a": 1}, {"a": 2}), ("1", 1)]
    assert not any(_same(one, other, 1e-9) for one, other in [*different, ({"a": 1}, [1]), (1e-12, 1.0)])


@pytest.mark.parametrize(
    ("missing", "questions", "relevant", "value"),
    [
        (["number"], 1, 1, 1.0),
        ([], 0, 0, 1.0),
        ([], 2, 0, 1 - 0.6 * 2 / 3),  # two unnecessary questions
        (["number"], 2, 1, 1 - 0.6 * 1 / 3),
        (["number"], 0, 0, 1 - 0.6 * 1 / 3),  # guessed
        (["number"], 1, 0, 1 - 0.6 * 2 / 3),  # an irrelevant question and a guess
        ([], 9, 0, 1 - 0.6),
    ],
)
def test_questions_lower_the_reward_of_solved_episodes_only(missing, questions, relevant, value):
    counts = {"questions": questions, "relevant_questions": relevant}
    problem = task(missing=missing)
    options = {"weight": 0.6, "max_mistakes": 3}
    solved = score("relevant_questions", episode("x", final={"success": True, **counts}), problem, **options)
    assert solved.value == pytest.approx(value)
    assert solved.parts["unnecessary_questions"] == questions - relevant
    failed = score("relevant_questions", episode("x", final={"success": False, **counts}), problem, **options)
    assert (failed.value, failed.success) == (0.0, False)


def test_verdict_without_counts_of_questions_is_refused():
    with pytest.raises(ValueError, match=r"does not count questions.*ambiguous_fraction"):
        score("relevant_questions", episode("x", final={"success": True}), task(missing=[]))


def test_milestones_are_not_rewarded_per_turn_and_as_partial_credit():
    with pytest.raises(OptionError, match="set weight: 0"):
        Milestones(partial_credit=0.5)


@pytest.mark.parametrize("discount", [0.0, -0.5, 1.5])
def test_discount_of_milestones_out_of_range_is_refused(discount):
    with pytest.raises(ValueError, match=r"discount must be in \(0, 1\]"):
        Milestones(discount=discount)


def test_too_few_timed_pairs_are_refused():
    with pytest.raises(ValueError, match="pairs must be at least 3, got 2"):
        Speedup(pairs=2)


def test_answer_submitted_to_the_environment_is_scored():
    problem = task("?", answer="Rome")
    right = episode("look up the capital", final={"answer": "rome", "plans": 1})
    assert score("submitted_answer", right, problem).success is True
    assert score("submitted_answer", episode("Rome", final={"answer": "Oslo"}), problem).success is False
    assert score("submitted_answer", episode("Rome", final={}), problem).value == 0.0  # without an answer
