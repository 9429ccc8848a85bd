"""Prompts for judges, word for word, and worked numbers of their answers."""

import asyncio
import inspect
import json
from pathlib import Path

import pytest

from support.rewards import episode, group, score, task, turn
from whetstone.chat import user
from whetstone.errors import RecipeError
from whetstone.rewards import REWARDS, make_reward
from whetstone.rewards.generated.generate_reward import write_reward
from whetstone.rewards.judge_rewards.checklist import Checklist
from whetstone.rewards.judge_rewards.evidence import Evidence, parse_evidence
from whetstone.rewards.judge_rewards.judge_input import format_episode
from whetstone.rewards.judge_rewards.pairwise import compare_texts
from whetstone.rewards.judge_rewards.rubric import Criterion, parse_criteria, rubric_score
from whetstone.rewards.judge_rewards.rule_adherence import Rules, extract_rules
from whetstone.rewards.judge_rewards.rule_then_judge import Verified, parse_quantity, run_verifier_tool, same_quantity
from whetstone.rewards.judges import ScriptedJudge
from whetstone.trajectory import Score

GOLDEN = Path(__file__).parents[2] / "golden" / "judge_questions.json"
"""`python tests/rewards/judge_rewards/test_questions.py` renews it."""
TWO = episode(
    turn("<think>hm</think>Looking.", ("find", {"q": "x"}), back=["it is\nRome"], observed=[user("and?")]),
    "Rome. Evidence: 1",
)
THREE = episode(turn("Rome.", ("t", {})), turn("Rome!", ("t", {})), turn("", observed=[user("and?")]), "Bern")
ITEM = {"id": "a", "question": "Is it Rome?", "weight": 0.5, "focus_on": "words", "pass_condition": "Rome is said"}
ITEMS = [ITEM | {"failure_examples": ["Oslo", "Bern"], "lasting": True}, {"id": "b", "question": "q", "weight": 0.5}]
GIVEN = task("Which?", answer="Oslo, 2 km", checklists=[[ITEMS, [{**ITEM, "lasting": True}]]])


class RecordingJudge(ScriptedJudge):
    """A judge that answers yes or the first allowed value, and records its prompts."""

    def __init__(self):
        super().__init__(answers=self.first)
        self.asked = []

    async def first(self, question):
        self.asked.append([question.ask, dict(question.material), question.shape])
        if "tool" in question.shape["properties"] and "what your tools said" in question.material:
            say = question.material["what your tools said"].count("\n") == 1
            return {"thought": "t", "tool": "none" if say else "convert", "input": "2 km to m", "verdict": "correct"}
        return {key: self.any_of(key, rule) for key, rule in question.shape["properties"].items()}

    def any_of(self, key, rule):
        if rule["type"] == "array":
            return [f"rule {len(self.asked)}", " "]
        if key == "failure_example_applies":
            return False
        return True if rule["type"] == "boolean" else rule.get("enum", ["1 + 1"])[0]


def score_reward(name, one=TWO, **options):
    return lambda judge: score(name, one, GIVEN, judge=judge, **options)


PREFERENCES = [("t", "good", "bad"), ("u", "well", "ill")]
LABELLED = [(TWO, GIVEN, True), (episode("Bern"), GIVEN, False)]
ASKING = {
    "rubric": score_reward("rubric", criteria=["It is Rome."]),
    "rubric, the answer alone": score_reward("rubric", criteria=["It is Rome."], answer_only=True),
    "rules": score_reward("rules", rules=["Be brief."]),
    "checklist": score_reward("checklist", THREE),
    "evidence": score_reward("evidence"),
    "step_labels": score_reward("step_labels"),
    "rule_then_judge": score_reward("rule_then_judge"),
    "pairwise_judge": lambda judge: group("pairwise_judge", [TWO, episode("Bern")], GIVEN, judge=judge),
    "rules_from": lambda judge: asyncio.run(extract_rules(judge, PREFERENCES, max_rules=7)),
    "write_reward": lambda judge: asyncio.run(write_reward(judge, "Say it.", LABELLED, rounds=2)),
}
"""Component with a judge → a call that prompts it."""


def questions(name):
    judge = RecordingJudge()
    ASKING[name](judge)
    return json.loads(json.dumps(judge.asked))


@pytest.mark.parametrize("name", ASKING)
def test_prompts_are_the_stored_ones(name):
    """Compare with the stored prompts, which change only on purpose."""
    assert questions(name) == json.loads(GOLDEN.read_text())[name]


def agreeing_judge(**more):
    """Answer yes if no material contains `no`."""
    return ScriptedJudge(
        answers=lambda question: {
            "reason": "r",
            "met": not any("no" in text for name, text in question.material.items() if name != "task"),
            **more,
        }
    )


def test_checklists_of_a_conversation_are_averaged_and_success_needs_all():
    judge, one = (
        agreeing_judge(focus_present=True, failure_example_applies=False),
        {"id": "a", "question": "q", "weight": 1.0},
    )
    problem = task("?", checklists=[[[one]], [[{**one, "weight": 0.5}]]])
    result = score("checklist", episode("well"), problem, judge=judge)
    assert (result.parts, result.turns, result.success) == ({"checklist": 0.75}, (0.75,), False)
    assert score("checklist", episode("well"), task("?", checklists=[[[one]]]), judge=judge).success is True
    for patience in (0.0, -1.0, 1.5):
        with pytest.raises(ValueError, match=r"patience must be in \(0, 1\]"):
            Checklist(judge=judge, patience=patience)


@pytest.mark.parametrize(
    ("change", "expected"),
    [({}, 1), ({"met": False}, 0), ({"focus_present": False}, 0), ({"failure_example_applies": True}, 0)],
)
def test_item_is_met(change, expected):
    judge = agreeing_judge(**{"focus_present": True, "failure_example_applies": False, **change})
    problem = task("?", checklists=[[[{"id": "a", "question": "q", "weight": 1.0, "focus_on": "the tool"}]]])
    for outcomes in (("ok",), ("ok", "tool_error")):
        one = episode(turn("", *(("t", {}, outcome) for outcome in outcomes)))
        assert score("checklist", one, problem, judge=judge).parts["checklist"] == expected


@pytest.mark.parametrize(
    ("quote", "focus", "expected"),
    [
        ("it is paid  today", "", 1),  # white space does not matter
        ("it was paid today", "", 0),
        ("paid", "", 0),  # too short, and no whole line
        ("ok 40", "", 1),  # a whole line
        ("The refund is done", "", 1),  # the agent's own words
        ("The refund is done", "the tool call", 0),
    ],
)
def test_item_needs_a_quote_of_the_record(quote, focus, expected):
    judge = agreeing_judge(focus_present=True, failure_example_applies=False, quote=quote)
    problem = task("?", checklists=[[[{"id": "a", "question": "q", "weight": 1.0, "focus_on": focus}]]])
    one = episode(turn("The refund is done", ("t", {}), back=["it is paid today\nok 40"]))
    assert score("checklist", one, problem, judge=judge, quotes=True).parts["checklist"] == expected


@pytest.mark.parametrize(
    ("relevant", "complete", "named", "most", "value", "parts"),
    [
        (True, True, "1", 3, 1.4, (1, 1, 1, 1)),
        (True, True, "1, 2", 3, 1.35, (1, 1, 1, 0.5)),
        (True, True, "1", 1, 1.3, (1, 1, 1, 0)),
        (True, False, "1", 3, 0.3, (1, 1, 0, 0)),
        (False, True, "1", 3, 0.1, (1, 0, 0, 0)),
        (True, True, "1, 2", 1, 0, (0, 0, 0, 0)),
        (True, True, "0", 3, 0, (0, 0, 0, 0)),
    ],
)
def test_evidence_worked_numbers(relevant, complete, named, most, value, parts):
    judge = ScriptedJudge(answers=lambda question: {"reason": "r", "relevant": relevant, "complete": complete})
    result = score("evidence", episode("a", f"Evidence: {named}"), task("?"), judge=judge, max_steps=most)
    assert result.value == pytest.approx(value)
    assert result.parts == dict(zip(("format", "relevant", "complete", "concise"), parts, strict=True))
    assert result.success is bool(parts[2])
    with pytest.raises(ValueError, match="max_steps must be at least 1, got 0"):
        Evidence(judge=judge, max_steps=0)


def test_evidence_without_a_step():
    assert parse_evidence(episode()) is None
    for steps in ([1, "2"], [True], "1", {"1": 2}):
        assert parse_evidence(episode(turn("", ("submit", {"evidence": steps})))) is None
    assert parse_evidence(episode(turn("", ("look", {}), ("submit", {"evidence": [2, 2]})))) == [2]
    assert parse_evidence(episode("evidence 1, but rather: EVIDENCE: 3")) == [3]


def test_transcript():
    assert format_episode(episode(turn("Hm.", ("t", {"x": 1}), back=["y"]), "z")) == (
        'user: ?\n[turn 1] assistant: Hm.\ncalls t {"x": 1}\ntool: y\n[turn 2] assistant: z'
    )
    assert format_episode(episode("a", "b"), turns=[1]) == "[turn 2] assistant: b"
    assert format_episode(episode("abcdefgh"), turns=[0], max_characters=28) == "[turn 1] assistant: abcdefgh"
    assert (
        format_episode(episode("abcdefgh"), turns=[0], max_characters=10)
        == "[turn\n[… 18 characters left out …]\ndefgh"
    )


def test_win_fraction_next_to_another_reward():
    likes = ScriptedJudge(
        answers=lambda question: {
            "reason": "r",
            "better": "neither"
            if "even" in question.material["first"] + question.material["second"]
            else "first"
            if "good" in question.material["first"] or "biased" in question.material["second"]
            else "second",
        }
    )
    problem = task("?", answer="good")
    three = [episode("good"), episode("bad"), episode("even")]
    result = group("pairwise_judge", three, problem, judge=likes, base_reward="exact_match", weight=0.5)
    assert [one.value for one in result] == [1 + 0.5 * 0.75, 0.5 * 0.25, 0.5 * 0.5]
    assert [one.success for one in result] == [True, False, False]
    assert result[0].parts == {"correct": 1, "f1": 1, "wins": 0.75, "order_disagreed": 0}
    alone = score("pairwise_judge", three[0], problem, judge=likes, base_reward="exact_match", weight=0.5)
    assert (alone.value, alone.parts["wins"], alone.parts["order_disagreed"]) == (1.25, 0.5, 0)
    split = group("pairwise_judge", [episode("a biased"), episode("b biased"), episode("c")], problem, judge=likes)
    assert [one.parts["order_disagreed"] for one in split] == [0.5, 0.5, 0]
    assert [one.parts["wins"] for one in split] == [0.25, 0.25, 1]
    won = asyncio.run(compare_texts(likes, "?", "t", "bad", "good"))
    assert (won.won, won.disagreed) == (0.0, False)


def test_rubric_points():
    assert parse_criteria(["a", {"text": "b"}, {"criterion": "c", "points": 2, "rule": "r"}, {}]) == [
        Criterion("a", 1.0, ""),
        Criterion("b", 1.0, ""),
        Criterion("c", 2.0, "r"),
        Criterion("", 1.0, ""),
    ]
    assert rubric_score([True, False], [1.0, 0.5]) == pytest.approx(2 / 3)
    assert rubric_score([True, True], [0.5, 0.0]) == 1
    for each in ([0.0], [-1.0, 0.0]):
        with pytest.raises(ValueError, match="points above 0"):
            rubric_score([True] * len(each), each)
    problem = task("?", rubric=[{"criterion": "a", "points": 3}, {"criterion": "b", "rule": "support.judges:short"}])
    result = score(
        "rubric",
        episode("a long answer"),
        problem,
        judge=agreeing_judge(),
        success_at=0.75,
        rules=["support.judges:short"],
    )
    assert (result.value, result.parts, result.success) == (0.75, {"rubric": 0.75, "criteria_met": 0.5}, True)
    with pytest.raises(RecipeError, match=r"^rule \"support.judges:none\""):
        score("rubric", episode("x"), task("?", rubric=["a"]), judge=agreeing_judge(), rules=["support.judges:none"])


def test_fraction_of_rules():
    keeps = ScriptedJudge(answers=lambda question: {"reason": "r", "met": "brief" in question.ask})
    result = score("rules", episode("x"), task("?"), judge=keeps, rules=["brief", "kind"], weight=3.0)
    assert (result.value, result.parts, result.success) == (1.5, {"rules": 0.5}, False)
    assert score("rules", episode("x"), task("?"), judge=keeps, rules=["brief"]).success is True

    async def other(trajectory, problem):
        return Score(2.0, {"other": 1.0}, (0.5,), False, {"signal": (1.0,)})

    result = score("rules", episode("x"), task("?"), judge=keeps, rules=["brief"], base_reward=other, base_weight=0.25)
    assert result == Score(1.5, {"other": 1.0, "rules": 1.0}, (0.5,), False, {"signal": (1.0,)})
    with pytest.raises(ValueError, match="rules must not be empty"):
        Rules(judge=keeps, rules=[])
    one = ScriptedJudge(answers=lambda question: {"rules": [" be brief ", "", " "]})
    assert asyncio.run(extract_rules(one, [("t", "a", "b")])) == ["be brief"]
    many = ScriptedJudge(answers=lambda question: {"rules": [str(k) for k in range(9)]})
    assert asyncio.run(extract_rules(many, [("t", "a", "b")], max_rules=4)) == list("0123")


ONE = {
    "length": ["1 m", "100 cm", "1000 mm", "0.001 km", "1e9 nm"],
    "inches": ["0.3048 m", "1 ft", "12 in"],
    "miles": ["1 mi", "1609.344 m", "5280 FT"],
    "mass": ["1 kg", "1000 g", "1,000,000 mg", "0.001 t"],
    "pounds": ["1 lb", "0.45359237 kg"],
    "time": ["60 s", "1 min", "60000 ms", "6e7 us", "6e10 ns"],
    "hours": ["1 h", "3600 s"],
    "energy": ["1 kWh", "3.6e6 J", "3600 kJ"],
    "megajoules": ["1 MJ", "1000 kJ"],
    "calories": ["1 kcal", "1000 cal", "4184 J", "4.184 kJ"],
    "electrons": ["1 eV", "1.602176634e-19 J"],
    "volume": ["1 l", "1000 ml", "0.001 m^3", "0.001 m3", "1000 cm^3", "1000 cm3"],
    "pressure": ["1 bar", "100000 Pa", "100 kPa", "0.1 MPa"],
    "atmospheres": ["1 atm", "101325 Pa"],
    "share": ["50 %", "50%"],
}


@pytest.mark.parametrize("what", ONE)
def test_equal_quantities_in_other_units(what):
    first, *others = ONE[what]
    for other in others:
        assert same_quantity(first, other, tolerance=1e-9) is True, (first, other)
        assert same_quantity(other, first, tolerance=1e-9) is True
    assert same_quantity(first, "3 m" if what != "length" else "3 kg") is False
    assert parse_quantity(f" {first}. ") == parse_quantity(first)


def test_numbers_are_compared_relative_to_the_larger():
    assert same_quantity("100 m", "101 m", tolerance=1 / 101)
    assert same_quantity("101 m", "100 m", tolerance=1 / 101)
    assert not same_quantity("100 m", "101 m", tolerance=1 / 102)
    assert same_quantity("0 m", "0 cm", tolerance=0.0)
    assert score("rule_then_judge", episode("100 m"), task("?", answer="101 m"), tolerance=0.01).parts == {
        "correct": 1,
        "by_rule": 1,
        "by_verifier": 0,
        "undecided": 0,
    }
    assert score("rule_then_judge", episode("100 m"), task("?", answer="101 m")).parts["correct"] == 0
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        Verified(steps=0)
    assert Verified(steps=1).steps == 1


def test_unit_converter_of_a_verifier():
    assert run_verifier_tool("convert", "3 km to  M ") == "3000 M"
    assert run_verifier_tool("convert", "3 km") == "error: '3 km' is no conversion I know; such as `3 km to m`"
    assert run_verifier_tool("convert", "3 km to parsecs").startswith("error")
    assert run_verifier_tool("telescope", "x") == "error: 'telescope'"


@pytest.mark.parametrize(("verdict", "right"), [("correct", True), ("incorrect", False)])
def test_verdict_of_a_verifier(verdict, right):
    judge = ScriptedJudge(answers=lambda question: {"thought": "", "tool": "none", "input": "", "verdict": verdict})
    result = score("rule_then_judge", episode("azure"), task("?", answer="blue"), judge=judge)
    assert (result.value, result.success) == (float(right), right)
    assert result.parts == {"correct": float(right), "by_rule": 0, "by_verifier": 1, "undecided": 0}


def test_every_reward_with_a_judge_is_listed():
    asking = {name for name, reward in REWARDS.items() if "judge" in inspect.signature(reward).parameters}
    assert asking == ASKING.keys() & REWARDS.keys()
    assert make_reward({"name": "rules", "judge": agreeing_judge(), "rules": ["x"]}, REWARDS).weight == 1.0


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: questions(name) for name in ASKING}, indent=1) + "\n")
