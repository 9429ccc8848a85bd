"""Rewards by judges: worked numbers of their cards."""

import asyncio

import pytest

from support.rewards import episode, group, score, task, turn
from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.chat import user
from whetstone.errors import InfrastructureError, RecipeError, TaskError
from whetstone.recipe import load_recipe
from whetstone.rewards.judge_rewards.evidence import parse_evidence
from whetstone.rewards.judge_rewards.judge_input import format_episode
from whetstone.rewards.judge_rewards.pairwise import compare_texts
from whetstone.rewards.judge_rewards.rubric import rubric_score
from whetstone.rewards.judge_rewards.rule_adherence import extract_rules
from whetstone.rewards.judge_rewards.rule_then_judge import parse_quantity, run_verifier_tool, same_quantity
from whetstone.rewards.judges import ScriptedJudge
from whetstone.trajectory import EndReason

READS = {"name": "scripted", "answers": "support.judges:reads"}


def scripted(answers):
    return ScriptedJudge(answers=answers)


# ------------------------------------------------------------ the transcript for a judge


def test_transcript_has_no_reasoning():
    text = format_episode(
        episode(turn("<think>I am right, trust me</think>So:", ("t", {"x": 1})), "<think>never closed")
    )
    assert "trust me" not in text
    assert "never closed" not in text
    assert 'calls t {"x": 1}' in text


def test_long_text_is_abbreviated_in_the_middle():
    text = format_episode(episode("a" * 5000), max_characters=1000)
    assert len(text) < 1100
    assert "characters left out" in text


# ------------------------------------------------------------ rubrics


def test_rubric_worked_numbers():
    assert rubric_score([True, False, True, True], [5, 3, -4, 2]) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="points above 0"):
        rubric_score([True], [-1])


def test_criteria_by_judge_and_by_rule():
    rubric = [
        {"criterion": 'It says "Rome".', "points": 5},
        {"criterion": 'It says "Oslo".', "points": 3},
        {"text": 'It says "sorry".', "points": -4},
        {"criterion": "It is short.", "points": 2, "rule": "support.judges:short"},
    ]
    result = score("rubric", episode("Rome"), task("?", rubric=rubric), judge=READS, rules=["support.judges:short"])
    assert (result.value, result.success) == (pytest.approx(0.7), False)
    assert score(
        "rubric", episode("Rome, sorry for that"), task("?", rubric=rubric), judge=READS, rules=["support.judges:short"]
    ).value == pytest.approx(0.1)
    criteria = [{"criterion": "It is short.", "points": 2, "rule": "support.judges:short"}]
    assert score("rubric", episode("Rome"), task("?"), judge=READS, criteria=criteria).success
    assert score("rubric", episode("Rome and Oslo"), task("?"), judge=READS, criteria=['It says "Rome".']).success


def test_rubric_of_rules_has_no_judge_and_success_is_that_of_the_outcome():
    rubric = [
        {"criterion": "It calls once.", "rule": "called_as_often"},
        {"criterion": "It answers with what it read.", "rule": "number_was_read"},
        {"criterion": "It is right.", "points": 2, "rule": "right_number"},
        {"criterion": "It guesses.", "points": -1, "rule": "no_call"},
    ]
    problem = task("?", rubric=rubric, answer="6", calls=[{"arguments": {}}])
    read = turn("", ("calculator", {}), back=["6"])
    paid = [
        (episode(read, "6"), 1.0),  # (1 + 1 + 2) / 4
        (episode(read, "7"), 0.25),  # 1 / 4
        (episode("6"), 0.25),  # (2 − 1) / 4
        (episode("7"), -0.25),  # −1 / 4
        (episode(turn("", ("calculator", {}, "tool_error"), back=["no"]), "6"), 0.5),  # 2 / 4
    ]
    for trajectory, value in paid:
        result = score("rubric", trajectory, problem, outcome="exact_number")
        assert (result.value, result.parts["rubric"]) == (value, value)
        assert result.success == (trajectory.final_text == "6")


def test_criterion_without_a_judge_is_refused():
    with pytest.raises(TaskError, match=r'criterion "It is kind" has no rule, and there is no judge; set reward.judge'):
        score("rubric", episode("x"), task("?", rubric=["It is kind"]))
    recipe = load_recipe("demo", [*SMALL, "reward={name: rubric, criteria: [It is kind]}"])
    with pytest.raises(RecipeError, match=r"reward: task arithmetic/.*: criterion .* has no rule"):
        assemble(recipe).check()
    with pytest.raises(RecipeError, match=r'no rule named "no_cal"; did you mean "no_call"'):
        score("rubric", episode("x"), task("?"), rules=["no_cal"])


@pytest.mark.parametrize("rule", ["planted:rule", "os:system", "short"])
def test_rule_of_a_task_that_the_recipe_does_not_list_is_not_code(tmp_path, monkeypatch, rule):
    (tmp_path / "planted.py").write_text("import pathlib\npathlib.Path('ran').touch()\nrule = print\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rubric = [{"criterion": "It is good.", "rule": rule}]
    with pytest.raises(TaskError, match=r"task .*: the rule .* is not among those the recipe lists"):
        score("rubric", episode("Rome"), task("?", rubric=rubric), judge=READS, rules=["support.judges:short"])
    assert not (tmp_path / "ran").exists()


def test_judge_without_an_answer_is_no_zero():
    never = {"name": "scripted", "answers": "support.judges:never"}
    for name, problem in (
        ("rubric", {"rubric": ["x"]}),
        ("checklist", {"checklists": [[[{"id": "a", "question": "q", "weight": 1}]]]}),
    ):
        with pytest.raises(InfrastructureError):
            score(name, episode("Rome"), task("?", **problem), judge=never)


# ------------------------------------------------------------ checklists


def items(*weights, **more):
    return [
        {"id": f"i{k}", "question": f'Does it say "w{k}"?', "weight": weight, **more}
        for k, weight in enumerate(weights)
    ]


def judge_words():
    def says(question):
        wanted = question.ask.split('"')[1]
        text = question.material.get("step", question.material.get("steps", ""))
        yes = wanted in text and f"not {wanted}" not in text
        answer = {"focus_present": True, "reason": "r", "failure_example_applies": False, "met": yes}
        return answer if "focus_present" in question.shape["properties"] else {"reason": "r", "met": yes}

    return scripted(says)


def test_checklist_worked_numbers():
    problem = task("?", checklists=[[items(0.5, 0.3, 0.2)]])
    result = score("checklist", episode(turn("w0", ("t", {})), "w2"), problem, judge=judge_words())
    assert result.parts["checklist"] == pytest.approx(0.7)
    assert result.turns == pytest.approx((0.5, 0.2))
    assert result.value == 0


def test_two_turns_of_the_user():
    problem = task("?", checklists=[[items(0.5, 0.3, 0.2), items(1.0)]])
    one = episode(turn("w0 w2", observed=[user("and then?")]), "w0")
    result = score("checklist", one, problem, judge=judge_words())
    assert result.parts["checklist"] == pytest.approx(0.85)
    assert result.turns == pytest.approx((0.35, 0.5))


def test_dependent_items_wait_and_patience_ends():
    first, second = items(0.5, 0.5)
    problem = task("?", checklists=[[[first, {**second, "dependence": ["i0"]}]]])
    early = episode(turn("w1", ("t", {})), turn("w0", ("t", {})), "nothing")
    assert score("checklist", early, problem, judge=judge_words()).turns == pytest.approx((0, 0.5, 0))
    late = episode(turn("w0", ("t", {})), turn("x", ("t", {})), "w1")
    assert score("checklist", late, problem, judge=judge_words(), patience=0.5).turns == pytest.approx((0.5, 0, 0.125))


def test_undone_item_is_not_kept():
    undone = episode(turn("w0", ("t", {})), "not w0")
    assert score("checklist", undone, task("?", checklists=[[items(1.0)]]), judge=judge_words()).parts["checklist"] == 1
    lasting = task("?", checklists=[[items(1.0, lasting=True)]])
    assert score("checklist", undone, lasting, judge=judge_words()).parts["checklist"] == 0


def test_failed_call_needs_no_judge():
    problem = task("?", checklists=[[items(1.0, focus_on="the tool call")]])
    judge = judge_words()
    assert (
        score("checklist", episode(turn("w0", ("t", {}, "tool_error"))), problem, judge=judge).parts["checklist"] == 0
    )
    assert judge.meter.requests == 0


# ------------------------------------------------------------ rules


def test_rules_next_to_another_reward():
    result = score(
        "rules",
        episode("Rome"),
        task("?", answer="Rome"),
        judge=READS,
        rules=['It says "Rome"', 'It says "why"'],
        base_reward="exact_match",
        weight=0.5,
    )
    assert (result.value, result.success, result.parts["rules"]) == (1.25, True, 0.5)


def test_rules_are_extracted_from_preferences_and_merged():
    def extract(question):
        if "Merge" in question.ask:
            return {"rules": sorted(set(question.material["rules"].split("\n")))}
        return {"rules": ["be brief", f"say {question.material['better']}"]}

    result = asyncio.run(extract_rules(scripted(extract), [("t", "a", "b"), ("t", "c", "d")]))
    assert result == ["be brief", "say a", "say c"]


# ------------------------------------------------------------ evidence


def judge_evidence(question):
    text = question.material["evidence"]
    return {"reason": "r", "relevant": "file" in text, "complete": "file saved" in text}


def test_judge_sees_only_the_named_evidence_and_it_cannot_be_forged():
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


def test_named_steps():
    assert parse_evidence(episode("Evidence: 2, 5 and 2")) == [2, 5]
    assert parse_evidence(episode(turn("", ("submit", {"evidence": [3]})))) == [3]
    assert parse_evidence(episode("none")) is None


# ------------------------------------------------------------ verifiers


@pytest.mark.parametrize(
    ("answer", "wanted", "same"),
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
def test_rules_for_quantities(answer, wanted, same):
    assert same_quantity(answer, wanted) is same


def test_tools_of_a_verifier():
    assert run_verifier_tool("calculator", "2*3") == "6"
    assert run_verifier_tool("convert", "3 km to m") == "3000 m"
    assert run_verifier_tool("convert", "3 km to kg").startswith("error")
    assert run_verifier_tool("calculator", "import os").startswith("error")
    assert parse_quantity("abc") is None


def test_verifier_is_called_only_if_rules_cannot_decide():
    seen = []

    def verify(question):
        seen.append(question)
        tool_results = question.material.get("what your tools said", "")
        step = {"thought": "t", "tool": "calculator", "input": "50/100", "verdict": "undecided"}
        return {**step, "tool": "none", "verdict": "correct"} if "0.5" in tool_results else step

    judge = scripted(verify)
    problem = task("?", answer="0.5")
    assert score("rule_then_judge", episode("0.5"), problem, judge=judge).parts["by_rule"] == 1
    assert seen == []
    result = score("rule_then_judge", episode("50 %"), problem, judge=judge)
    assert (result.success, result.parts["by_verifier"], len(seen)) == (True, 1, 2)
    assert score("rule_then_judge", episode("50 %"), problem).parts["undecided"] == 1


def test_verifier_without_a_verdict_has_no_score():
    judge = scripted(lambda question: {"thought": "t", "tool": "calculator", "input": "1", "verdict": "undecided"})
    with pytest.raises(InfrastructureError, match="did not decide"):
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


def test_judge_that_prefers_the_first_position_has_no_score():
    biased = scripted(lambda question: {"reason": "r", "better": "first"})
    result = group("pairwise_judge", [episode("a"), episode("b")], task("?"), judge=biased)
    assert [one.value for one in result] == [0.5, 0.5]
    assert [one.parts["order_disagreed"] for one in result] == [1, 1]
    assert asyncio.run(compare_texts(biased, "?", "t", "same", "same")).won == 0.5
    assert score("pairwise_judge", episode("a"), task("?"), judge=biased).value == 0.5


class Verifier:
    """Verifier that multiplies only with a calculator: without it, it gives every answer the same score."""

    def __init__(self):
        self.questions = []

    def __call__(self, question):
        self.questions.append(question)
        tools = question.shape["properties"]["tool"]["enum"]
        step = {"thought": "", "tool": "none", "input": "", "verdict": "correct", "score": 5}
        observed = question.material.get("what your tools said")
        if observed is None and "calculator" in tools:
            step |= {"tool": "calculator", "input": question.material["question"]}
        elif observed is not None:
            right = observed.endswith(f"= {question.material['answer']}")
            step |= {"verdict": "correct" if right else "incorrect", "score": 10 if right else 0}
        return {name: step[name] for name in question.shape["required"]}


def test_verifier_without_a_reference_gives_a_score_and_uses_its_tools():
    verifier = Verifier()
    judge = ScriptedJudge(answers=verifier)
    results = [
        score("rule_then_judge", episode(text), task("6*7"), judge=judge, reference=False) for text in ("42", "43")
    ]
    assert [(result.value, result.success) for result in results] == [(1.0, True), (0.0, False)]
    assert "reference" not in verifier.questions[0].material


def test_verifier_without_tools_is_asked_without_them():
    verifier = Verifier()
    judge = ScriptedJudge(answers=verifier)
    results = [
        score("rule_then_judge", episode(text), task("6*7"), judge=judge, reference=False, tools=[])
        for text in ("42", "43")
    ]
    assert [result.value for result in results] == [0.5, 0.5]
    assert "You may use" not in verifier.questions[0].ask
    assert verifier.questions[0].shape["properties"]["tool"]["enum"] == ["none"]


def test_without_a_reference_a_judge_is_required():
    with pytest.raises(ValueError, match="reference: false requires a judge"):
        score("rule_then_judge", episode("42"), task("6*7"), reference=False)


@pytest.mark.parametrize(
    ("argument", "result"),
    [
        ("(x+1)^2 == x**2 + 2*x + 1", "equal"),
        ("x + 1 == x", "not shown to be equal"),
        ("sin(x)**2 + cos(x)**2", "1"),
        ("x +", "error: "),
    ],
)
def test_algebra_tool_compares_and_simplifies(argument, result):
    pytest.importorskip("math_verify")
    steps = [
        {"tool": "algebra", "input": argument, "verdict": "undecided"},
        {"tool": "none", "input": "", "verdict": "correct"},
    ]
    questions = []

    def answers(question):
        questions.append(question)
        return {"thought": "", **steps[len(questions) - 1]}

    score("rule_then_judge", episode("b"), task("?", answer="a"), judge=ScriptedJudge(answers=answers),
          tools=["algebra"], sandbox="unsafe")  # fmt: skip
    assert f"algebra({argument}) = {result}" in questions[1].material["what your tools said"]
