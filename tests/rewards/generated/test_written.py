"""Reward code is checked, tried and revised, and never executed unchecked."""

import asyncio

import pytest

from support.rewards import episode, score, task, turn
from support.sandbox import needs_isolation
from whetstone.errors import RecipeError
from whetstone.rewards.generated.code_reward import build_trace, run_reward
from whetstone.rewards.generated.generate_reward import rejection_reason, write_reward
from whetstone.rewards.judges import ScriptedJudge

GOOD = "def reward(trace):\n    return 1.0 if trace['answer'] == 'Rome' else 0.1 * len(trace['turns'])"
LABELLED = [
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
    ],
)
def test_allowed_code(code, message):
    reason = rejection_reason(code)
    assert message in reason if message else reason == ""


def write_from(*proposals, **more):
    left = list(proposals)
    seen = []

    def writes(question):
        seen.append(question.material)
        return {"reason": "r", "code": left.pop(0)}

    return asyncio.run(write_reward(ScriptedJudge(answers=writes), "Say the capital.", LABELLED, **more)), seen


@needs_isolation
def test_code_is_revised_until_it_separates_success_from_failure():
    broken = "def reward(trace):\n    return trace['nothing']"
    backwards = "def reward(trace):\n    return float(len(trace['turns']))"
    result, seen = write_from("def reward(trace): return open", broken, backwards, GOOD)
    assert (result.accepted, result.rounds, result.correlation) == (True, 4, pytest.approx(1.0))
    assert result.code == GOOD
    objections = [material.get("what was wrong with it", "") for material in seen]
    assert "there is no `open`" in objections[1]
    assert "KeyError" in objections[2]
    assert "go with success at -1.00" in objections[3]


@needs_isolation
def test_objections_are_to_the_code_in_the_prompt():
    some = "def reward(trace):\n    return float(len(trace['turns']))"
    proposals = [some, "", "def reward(trace) return", some, GOOD]
    result, seen = write_from(*proposals)
    assert (result.accepted, result.rounds, len(seen)) == (False, 4, 4)
    assert result.code == some
    assert [material.get("your last code") for material in seen] == [None, *proposals[:3]]
    objections = [material.get("what was wrong with it") for material in seen]
    assert objections == [None, *result.objections[:3]]
    assert "one function" in objections[2]
    assert "does not parse" in objections[3]


@needs_isolation
def test_code_that_never_separates_is_not_accepted():
    same = "def reward(trace):\n    return 0.5"
    result, _ = write_from(same, same, rounds=2)
    assert not result.accepted
    assert "the same of every episode" in result.objections[-1]
    with pytest.raises(ValueError, match="some that succeeded and some that failed"):
        asyncio.run(write_reward(ScriptedJudge(answers=lambda q: {}), "x", LABELLED[:1]))


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
