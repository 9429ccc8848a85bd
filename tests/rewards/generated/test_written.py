"""Reward code is checked, tried and revised, and never executed unchecked."""

import asyncio
import json

import pytest

from support.rewards import episode, score, task, turn
from support.sandbox import needs_isolation
from whetstone.errors import RecipeError
from whetstone.rewards.generated.code_reward import CodeResult, build_trace, run_reward
from whetstone.rewards.generated.generate_reward import rank_correlation, rejection_reason, write_reward
from whetstone.rewards.judges import ScriptedJudge

GOOD = "def reward(trace):\n    return 1.0 if trace['answer'] == 'Rome' else 0.1 * len(trace['turns'])"
LABELED = [
    (episode("Rome"), task("?", answer="Rome"), True),
    (episode(turn("", ("t", {})), "Oslo"), task("?", answer="Rome"), False),
] * 3


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (GOOD, ""),
        ("def reward(trace):\n    return math.log(2) + sum(len(t['text']) for t in trace['turns'])", ""),
        ("def reward(trace) return", "does not parse"),
        ("x = 1\n" + GOOD, "one function"),
        ("def other(trace):\n    return 1.0", "one function"),
        ("def reward(trace, more):\n    return 1.0", "one argument"),
        ("def reward(trace):\n    import os\n    return 1.0", "Import is not allowed"),
        ("def reward(trace):\n    while True: pass", "may never end"),
        ("def reward(trace):\n    return trace.__class__", "`.__class__` is not allowed"),
        ("def reward(trace):\n    return open('x')", "there is no `open`"),
        ("def reward(trace):\n    return eval('1')", "there is no `eval`"),
        ("def reward(trace):\n    return trace['private']['answer']", "a trace has no `private`"),
        ("def reward(trace):\n    return trace.get('task', 0)", "a trace has no `task`"),
        ("def reward(trace):\n    def half(x):\n        return x / 2\n    return half(1.0)", ""),
        ("def reward(trace):\n    return reward(trace)", "there is no `reward`"),
    ],
)
def test_allowed_code(code, message):
    reason = rejection_reason(code)
    assert message in reason if message else reason == ""


def write_from(*proposals, labeled=LABELED, contradictory=(), **more):
    """Let a scripted model write a reward; return the result and the material of each proposal."""
    left = list(proposals)
    seen = []

    def answers(question):
        if "code" in question.shape["properties"]:
            seen.append(question.material)
            return {"reason": "r", "code": left.pop(0)}
        if "analysis" in question.shape["properties"]:
            return {"analysis": f"{json.loads(question.material['failed'])['answer']} is paid"}
        return {"reason": "it pays length", "met": question.material["code"] not in contradictory}

    judge = ScriptedJudge(answers=answers)
    return asyncio.run(write_reward(judge, "Name the capital.", labeled, **more)), seen


@needs_isolation
def test_code_is_revised_until_it_separates_success_from_failure():
    broken = "def reward(trace):\n    return trace['turns'][0]['nothing']"
    backwards = "def reward(trace):\n    return float(len(trace['turns']))"
    result, seen = write_from("def reward(trace): return open", broken, backwards, GOOD)
    assert (result.accepted, result.rounds, result.correlation) == (True, 4, pytest.approx(1.0))
    assert result.code == GOOD
    objections = [material.get("objection to it", "") for material in seen]
    assert "there is no `open`" in objections[1]
    assert "KeyError" in objections[2]
    assert "go with success at -1.00" in objections[3]
    assert objections[3].endswith("Oslo is paid")  # the analyzer compares the failure with the highest value


@needs_isolation
def test_objections_are_to_the_code_in_the_prompt():
    some = "def reward(trace):\n    return float(len(trace['turns']))"
    proposals = [some, "", "def reward(trace) return", some, GOOD]
    result, seen = write_from(*proposals)
    assert (result.accepted, result.rounds, len(seen)) == (False, 4, 4)
    assert result.code == some
    assert [material.get("your last code") for material in seen] == [None, *proposals[:3]]
    objections = [material.get("objection to it") for material in seen]
    assert objections == [None, *result.objections[:3]]
    assert "one function" in objections[2]
    assert "does not parse" in objections[3]


@needs_isolation
def test_code_that_never_separates_is_not_accepted():
    same = "def reward(trace):\n    return 0.5"
    result, _ = write_from(same, same, rounds=2)
    assert not result.accepted
    assert "the same value for every episode" in result.objections[-1]
    with pytest.raises(ValueError, match="some that succeeded and some that failed"):
        asyncio.run(write_reward(ScriptedJudge(answers=lambda q: {}), "x", LABELED[:1]))


@needs_isolation
def test_reward_file_is_run_next_to_a_rule_and_bounded(tmp_path):
    path = tmp_path / "reward.py"
    path.write_text(GOOD.replace("1.0 if", "99.0 if"))
    problem = task("?", answer="Rome", secret="s")
    result = score("generated_code", episode("Rome"), problem, path=str(path), weight=0.5)
    assert (result.value, result.parts["written"], result.success) == (1.5, 99, True)
    path.write_text("def reward(trace):\n    return float('nan')")
    with pytest.raises(ValueError, match="it returned nan"):
        score("generated_code", episode("Rome"), problem, path=str(path))
    with pytest.raises(RecipeError, match="no such file"):
        score("generated_code", episode("Rome"), problem, path=str(tmp_path / "none.py"))


@needs_isolation
def test_trace_has_no_private_data_of_the_verifier():
    problem = task("What?", answer="Rome", secret="hidden")
    assert "hidden" not in str(build_trace(episode("x"), problem))
    peek = "def reward(trace):\n    return float('answer' in trace and trace['answer'] == 'x')"
    assert asyncio.run(run_reward(peek, episode("x"), problem)).value == 1
    assert asyncio.run(run_reward("def reward(trace):\n    return [][1]", episode("x"), problem)).error.startswith(
        "IndexError"
    )


def run_here(code, trajectory, task):
    """Run code in this process, for tests on a machine without a sandbox."""
    names = {}
    exec(code, names)

    async def value():
        return CodeResult(float(names["reward"](build_trace(trajectory, task))))

    return value()


def test_code_that_contradicts_its_reason_is_not_run():
    ran = []

    def run(code, *episode):
        ran.append(code)
        return run_here(code, *episode)

    wrong = "def reward(trace):\n    return float(len(trace['prompt']))"
    result, seen = write_from(wrong, GOOD, contradictory=[wrong], run=run)
    assert (result.accepted, result.rounds, set(ran)) == (True, 2, {GOOD})
    assert seen[1]["objection to it"] == "it contradicts its reason: it pays length"


def test_code_with_two_values_for_one_episode_contradicts_itself():
    values = iter([1.0, 2.0])

    async def run(*_):
        return CodeResult(next(values))

    result, _ = write_from(GOOD, run=run, rounds=1)
    assert result.objections == ("it contradicts itself: the same episode has another value when it is scored again",)


def test_a_further_check_can_object():
    async def check(code):
        return "" if "0.1" not in code else "the audit fails"

    result, seen = write_from(GOOD, GOOD.replace("0.1", "0.2"), run=run_here, check=check)
    assert (result.accepted, result.rounds, seen[1]["objection to it"]) == (True, 2, "the audit fails")


def test_model_changes_only_the_numbers_of_a_template():
    template = "def reward(trace):\n    return 0 * len(trace['turns']) + 0.0 * (trace['answer'] == 'Rome')"
    other = "def reward(trace):\n    return 1.0 * (trace['answer'] == 'Rome')"
    filled = "def reward(trace):\n    return -1 * len(trace['turns']) + 2.5 * (trace['answer'] == 'Rome')"
    result, seen = write_from(other, filled, template=template, run=run_here)
    assert (result.code, result.rounds) == (filled, 2)
    assert seen[0]["template, of which only numbers may change"] == template
    assert seen[1]["objection to it"] == "it differs from the template in more than its numbers"
    with pytest.raises(RecipeError, match=r"template: line 2: there is no `open`"):
        write_from(template="def reward(trace):\n    return open(0)")


def test_rank_correlation_counts_pairs():
    values, succeeded = [3.0, 1.0, 1.0, 0.0, 2.0], [True, True, False, False, False]
    # successes 3, 1 and failures 1, 0, 2: 3 wins three times; 1 ties, wins, loses; (4 − 1) / 6
    assert rank_correlation(values, succeeded) == pytest.approx(0.5)
    wins = [(a > b) - (a < b) for a, x in zip(values, succeeded, strict=True) if x
            for b, y in zip(values, succeeded, strict=True) if not y]  # fmt: skip
    assert rank_correlation(values, succeeded) == pytest.approx(sum(wins) / len(wins))
    assert rank_correlation([1, 1, 0, 0, 0], succeeded) == 1.0


@needs_isolation
def test_code_that_never_ends_is_ended(monkeypatch):
    monkeypatch.setattr("whetstone.rewards.generated.code_reward._SECONDS", 0.3)
    endless = "def reward(trace):\n    return sum(1.0 for _ in range(10**12))"
    result, _ = write_from(endless, rounds=1)
    assert not result.accepted
    assert "it ran longer than 0.3 s and was ended" in result.objections[0]
