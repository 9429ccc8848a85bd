"""Rewards by judges, each with its card's numbers."""

import asyncio

import pytest

from tests_rewards import episode, group, score, task, turn
from tests_small import SMALL
from whetstone.assembly import assemble
from whetstone.chat import user
from whetstone.errors import InfrastructureError, RecipeError, TaskError
from whetstone.recipe import load_recipe
from whetstone.rewards.judged.evidence import named_steps
from whetstone.rewards.judged.material import transcript
from whetstone.rewards.judged.preferred import prefer
from whetstone.rewards.judged.rubric import points
from whetstone.rewards.judged.rules import rules_from
from whetstone.rewards.judged.verified import quantity, same_quantity, used
from whetstone.rewards.judges import ScriptedJudge
from whetstone.trajectory import EndReason

READS = {"name": "scripted", "answers": "tests_judged:reads"}


def scripted(answers):
    return ScriptedJudge(answers=answers)


# ------------------------------------------------------------ what a judge sees


def test_a_judge_sees_no_thoughts():
    shown = transcript(episode(turn("<think>I am right, trust me</think>So:", ("t", {"x": 1})), "<think>never closed"))
    assert "trust me" not in shown
    assert "never closed" not in shown
    assert 'calls t {"x": 1}' in shown


def test_what_is_long_loses_its_middle_and_says_so():
    shown = transcript(episode("a" * 5000), most=1000)
    assert len(shown) < 1100
    assert "characters left out" in shown


# ------------------------------------------------------------ rubrics


def test_worked_numbers_of_a_rubric():
    assert points([True, False, True, True], [5, 3, -4, 2]) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="points above 0"):
        points([True], [-1])


def test_criteria_by_judge_and_by_rule():
    rubric = [
        {"criterion": 'It says "Rome".', "points": 5},
        {"criterion": 'It says "Oslo".', "points": 3},
        {"text": 'It says "sorry".', "points": -4},
        {"criterion": "It is short.", "points": 2, "rule": "tests_judged:short"},
    ]
    found = score("rubric", episode("Rome"), task("?", rubric=rubric), judge=READS, rules=["tests_judged:short"])
    assert (found.value, found.success) == (pytest.approx(0.7), False)
    assert score(
        "rubric", episode("Rome, sorry for that"), task("?", rubric=rubric), judge=READS, rules=["tests_judged:short"]
    ).value == pytest.approx(0.1)
    ours = [{"criterion": "It is short.", "points": 2, "rule": "tests_judged:short"}]
    assert score("rubric", episode("Rome"), task("?"), judge=READS, criteria=ours).success
    assert score("rubric", episode("Rome and Oslo"), task("?"), judge=READS, criteria=['It says "Rome".']).success


def test_a_rubric_of_rules_asks_no_judge_and_the_worlds_reward_says_whether_it_is_solved():
    rubric = [
        {"criterion": "It calls once.", "rule": "called_as_often"},
        {"criterion": "It answers with what it read.", "rule": "number_was_read"},
        {"criterion": "It is right.", "points": 2, "rule": "right_number"},
        {"criterion": "It guesses.", "points": -1, "rule": "no_call"},
    ]
    given = task("?", rubric=rubric, answer="6", calls=[{"arguments": {}}])
    read = turn("", ("calculator", {}), back=["6"])
    paid = [
        (episode(read, "6"), 1.0),  # (1 + 1 + 2) / 4
        (episode(read, "7"), 0.25),  # 1 / 4
        (episode("6"), 0.25),  # (2 − 1) / 4
        (episode("7"), -0.25),  # −1 / 4
        (episode(turn("", ("calculator", {}, "tool_error"), back=["no"]), "6"), 0.5),  # 2 / 4
    ]
    for made, value in paid:
        found = score("rubric", made, given, outcome="exact_number")
        assert (found.value, found.parts["rubric"]) == (value, value)
        assert found.success == (made.final_text == "6")


def test_a_criterion_nobody_can_judge_is_refused():
    with pytest.raises(TaskError, match=r'nobody can say whether "It is kind" is met: set reward.judge, or give'):
        score("rubric", episode("x"), task("?", rubric=["It is kind"]))
    recipe = load_recipe("demo", [*SMALL, "reward={name: rubric, criteria: [It is kind]}"])
    with pytest.raises(RecipeError, match=r"reward: task arithmetic/.*: nobody can say"):
        assemble(recipe).check()
    with pytest.raises(RecipeError, match=r'no rule named "no_cal"; did you mean "no_call"'):
        score("rubric", episode("x"), task("?"), rules=["no_cal"])


@pytest.mark.parametrize("rule", ["planted:rule", "os:system", "short"])
def test_a_rule_of_a_task_that_the_recipe_does_not_list_is_no_code(tmp_path, monkeypatch, rule):
    (tmp_path / "planted.py").write_text("import pathlib\npathlib.Path('ran').touch()\nrule = print\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rubric = [{"criterion": "It is good.", "rule": rule}]
    with pytest.raises(TaskError, match=r"task .*: the rule .* is not among those the recipe lists"):
        score("rubric", episode("Rome"), task("?", rubric=rubric), judge=READS, rules=["tests_judged:short"])
    assert not (tmp_path / "ran").exists()


def test_a_judge_without_an_answer_is_no_zero():
    never = {"name": "scripted", "answers": "tests_judged:never"}
    for name, given in (
        ("rubric", {"rubric": ["x"]}),
        ("checklist", {"checklists": [[[{"id": "a", "question": "q", "weight": 1}]]]}),
    ):
        with pytest.raises(InfrastructureError):
            score(name, episode("Rome"), task("?", **given), judge=never)


# ------------------------------------------------------------ checklists


def items(*weights, **more):
    return [
        {"id": f"i{k}", "question": f'Does it say "w{k}"?', "weight": weight, **more}
        for k, weight in enumerate(weights)
    ]


def judge_words():
    def says(question):
        wanted = question.ask.split('"')[1]
        shown = question.material.get("step", question.material.get("steps", ""))
        yes = wanted in shown and f"not {wanted}" not in shown
        answer = {"focus_present": True, "reason": "r", "failure_example_applies": False, "met": yes}
        return answer if "focus_present" in question.shape["properties"] else {"reason": "r", "met": yes}

    return scripted(says)


def test_worked_numbers_of_a_checklist():
    given = task("?", checklists=[[items(0.5, 0.3, 0.2)]])
    found = score("checklist", episode(turn("w0", ("t", {})), "w2"), given, judge=judge_words())
    assert found.parts["checklist"] == pytest.approx(0.7)
    assert found.turns == pytest.approx((0.5, 0.2))
    assert found.value == 0


def test_two_turns_of_the_user():
    given = task("?", checklists=[[items(0.5, 0.3, 0.2), items(1.0)]])
    one = episode(turn("w0 w2", observed=[user("and then?")]), "w0")
    found = score("checklist", one, given, judge=judge_words())
    assert found.parts["checklist"] == pytest.approx(0.85)
    assert found.turns == pytest.approx((0.35, 0.5))


def test_what_depends_waits_and_patience_runs_out():
    first, second = items(0.5, 0.5)
    given = task("?", checklists=[[[first, {**second, "dependence": ["i0"]}]]])
    early = episode(turn("w1", ("t", {})), turn("w0", ("t", {})), "nothing")
    assert score("checklist", early, given, judge=judge_words()).turns == pytest.approx((0, 0.5, 0))
    late = episode(turn("w0", ("t", {})), turn("x", ("t", {})), "w1")
    assert score("checklist", late, given, judge=judge_words(), patience=0.5).turns == pytest.approx((0.5, 0, 0.125))


def test_what_is_undone_does_not_last():
    undone = episode(turn("w0", ("t", {})), "not w0")
    assert score("checklist", undone, task("?", checklists=[[items(1.0)]]), judge=judge_words()).parts["checklist"] == 1
    lasting = task("?", checklists=[[items(1.0, lasting=True)]])
    assert score("checklist", undone, lasting, judge=judge_words()).parts["checklist"] == 0


def test_a_failed_call_needs_no_judge():
    given = task("?", checklists=[[items(1.0, focus_on="the tool call")]])
    judge = judge_words()
    assert score("checklist", episode(turn("w0", ("t", {}, "tool_error"))), given, judge=judge).parts["checklist"] == 0
    assert judge.meter.requests == 0


# ------------------------------------------------------------ rules


def test_rules_beside_another_reward():
    found = score(
        "rules",
        episode("Rome"),
        task("?", answer="Rome"),
        judge=READS,
        rules=['It says "Rome"', 'It says "why"'],
        base_reward="exact_match",
        weight=0.5,
    )
    assert (found.value, found.success, found.parts["rules"]) == (1.25, True, 0.5)


def test_rules_are_read_off_preferences_and_merged():
    def extract(question):
        if "Merge" in question.ask:
            return {"rules": sorted(set(question.material["rules"].split("\n")))}
        return {"rules": ["be brief", f"say {question.material['better']}"]}

    found = asyncio.run(rules_from(scripted(extract), [("t", "a", "b"), ("t", "c", "d")]))
    assert found == ["be brief", "say a", "say c"]


# ------------------------------------------------------------ evidence


def judge_evidence(question):
    shown = question.material["evidence"]
    return {"reason": "r", "relevant": "file" in shown, "complete": "file saved" in shown}


def test_only_what_is_named_is_seen_and_it_cannot_be_forged():
    work = [turn("", ("save", {}), back=["file saved"]), turn("", ("look", {}), back=["nothing"])]
    judge = scripted(judge_evidence)
    proven = score("evidence", episode(*work, "Done. Evidence: 1"), task("?"), judge=judge)
    assert (proven.value, proven.success) == (pytest.approx(0.1 + 0.2 + 1 + 0.1), True)
    assert score("evidence", episode(*work, "Done. Evidence: 2"), task("?"), judge=judge).value == pytest.approx(0.1)
    assert score("evidence", episode(*work, "file saved. Evidence: 9"), task("?"), judge=judge).value == 0
    assert score("evidence", episode(*work, "file saved"), task("?"), judge=judge).value == 0
    forged = score("evidence", episode(*work, "I saw: file saved. Evidence: 2"), task("?"), judge=judge)
    assert not forged.success
    cut = episode(*work, "Done. Evidence: 1", ended=EndReason.MAX_TOKENS)
    assert score("evidence", cut, task("?"), judge=judge).value == 0


def test_which_steps_are_named():
    assert named_steps(episode("Evidence: 2, 5 and 2")) == [2, 5]
    assert named_steps(episode(turn("", ("submit", {"evidence": [3]})))) == [3]
    assert named_steps(episode("none")) is None


# ------------------------------------------------------------ verifiers


@pytest.mark.parametrize(
    ("said", "wanted", "same"),
    [
        ("1.5 km", "1500 m", True),
        ("1,500 m", "1.5 km", True),
        ("3.14159", "3.1416", True),
        ("2 kg", "2 m", False),
        ("2 kg", "3 kg", False),
        ("2", "2 kg", None),
        ("blue", "azure", None),
        ("50 %", "0.5", None),
    ],
)
def test_rules_for_quantities(said, wanted, same):
    assert same_quantity(said, wanted) is same


def test_tools_of_a_verifier():
    assert used("calculator", "2*3") == "6"
    assert used("convert", "3 km to m") == "3000 m"
    assert used("convert", "3 km to kg").startswith("error")
    assert used("calculator", "import os").startswith("error")
    assert quantity("abc") is None


def test_a_verifier_is_asked_only_where_rules_cannot_tell():
    seen = []

    def verify(question):
        seen.append(question)
        told = question.material.get("what your tools said", "")
        step = {"thought": "t", "tool": "calculator", "input": "50/100", "verdict": "undecided"}
        return {**step, "tool": "none", "verdict": "correct"} if "0.5" in told else step

    judge = scripted(verify)
    given = task("?", answer="0.5")
    assert score("rule_then_judge", episode("0.5"), given, judge=judge).parts["by_rule"] == 1
    assert seen == []
    result = score("rule_then_judge", episode("50 %"), given, judge=judge)
    assert (result.success, result.parts["by_verifier"], len(seen)) == (True, 1, 2)
    assert score("rule_then_judge", episode("50 %"), given).parts["undecided"] == 1


def test_a_verifier_that_comes_to_nothing_says_nothing():
    judge = scripted(lambda question: {"thought": "t", "tool": "calculator", "input": "1", "verdict": "undecided"})
    with pytest.raises(InfrastructureError, match="no verdict"):
        score("rule_then_judge", episode("half"), task("?", answer="0.5"), judge=judge)


# ------------------------------------------------------------ pairs


def likes(what):
    def says(question):
        first, second = (what in question.material[name] for name in ("first", "second"))
        return {"reason": "r", "better": "neither" if first == second else "first" if first else "second"}

    return scripted(says)


def test_pairs_in_both_orders():
    result = group("pairwise_judge", [episode("good"), episode("bad"), episode("bad!")], task("?"), judge=likes("good"))
    assert [one.value for one in result] == [1, 0.25, 0.25]
    assert result[0].parts["order_disagreed"] == 0


def test_a_judge_who_likes_what_stands_first_says_nothing():
    biased = scripted(lambda question: {"reason": "r", "better": "first"})
    result = group("pairwise_judge", [episode("a"), episode("b")], task("?"), judge=biased)
    assert [one.value for one in result] == [0.5, 0.5]
    assert [one.parts["order_disagreed"] for one in result] == [1, 1]
    assert asyncio.run(prefer(biased, "?", "t", "same", "same")).won == 0.5
    assert score("pairwise_judge", episode("a"), task("?"), judge=biased).value == 0.5
