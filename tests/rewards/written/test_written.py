"""Reward code is checked, tried, sent back, and never used as it comes."""

import asyncio

import pytest

from tests_rewards import episode, score, task, turn
from tests_sandbox import needs_isolation
from whetstone.errors import RecipeError
from whetstone.rewards.judges import ScriptedJudge
from whetstone.rewards.written.reward import run_reward, trace_of
from whetstone.rewards.written.writing import objection_to, write_reward

GOOD = "def reward(trace):\n    return 1.0 if trace['answer'] == 'Rome' else 0.1 * len(trace['turns'])"
LABELLED = [
    (episode("Rome"), task("?", answer="Rome"), True),
    (episode(turn("", ("t", {})), "Oslo"), task("?", answer="Rome"), False),
] * 3


@pytest.mark.parametrize(
    ("code", "said"),
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
def test_what_may_be_run(code, said):
    found = objection_to(code)
    assert said in found if said else found == ""


def written(*proposals, **more):
    left = list(proposals)
    seen = []

    def writes(question):
        seen.append(question.material)
        return {"reason": "r", "code": left.pop(0)}

    return asyncio.run(write_reward(ScriptedJudge(answers=writes), "Say the capital.", LABELLED, **more)), seen


@needs_isolation
def test_it_is_sent_back_until_it_tells_success_from_failure():
    broken = "def reward(trace):\n    return trace['nothing']"
    backwards = "def reward(trace):\n    return float(len(trace['turns']))"
    found, seen = written("def reward(trace): return open", broken, backwards, GOOD)
    assert (found.accepted, found.rounds, found.correlation) == (True, 4, pytest.approx(1.0))
    assert found.code == GOOD
    said = [material.get("what was wrong with it", "") for material in seen]
    assert "there is no `open`" in said[1]
    assert "KeyError" in said[2]
    assert "go with success at -1.00" in said[3]


@needs_isolation
def test_what_was_wrong_is_said_of_the_code_that_is_shown():
    some = "def reward(trace):\n    return float(len(trace['turns']))"
    proposals = [some, "", "def reward(trace) return", some, GOOD]
    found, seen = written(*proposals)
    assert (found.accepted, found.rounds, len(seen)) == (False, 4, 4)
    assert found.code == some
    assert [material.get("your last code") for material in seen] == [None, *proposals[:3]]
    said = [material.get("what was wrong with it") for material in seen]
    assert said == [None, *found.objections[:3]]
    assert "one function" in said[2]
    assert "does not parse" in said[3]


@needs_isolation
def test_what_never_gets_there_is_not_accepted():
    same = "def reward(trace):\n    return 0.5"
    found, _ = written(same, same, rounds=2)
    assert not found.accepted
    assert "the same of every episode" in found.objections[-1]
    with pytest.raises(ValueError, match="of both kinds"):
        asyncio.run(write_reward(ScriptedJudge(answers=lambda q: {}), "x", LABELLED[:1]))


@needs_isolation
def test_a_file_is_run_beside_a_rule_and_bounded(tmp_path):
    path = tmp_path / "reward.py"
    path.write_text(GOOD.replace("1.0 if", "99.0 if"))
    given = task("?", answer="Rome", secret="s")
    result = score("generated_code", episode("Rome"), given, path=str(path), weight=0.5)
    assert (result.value, result.parts["written"], result.success) == (1.5, 99, True)
    path.write_text("def reward(trace):\n    return float('nan')")
    with pytest.raises(ValueError, match="it said nan"):
        score("generated_code", episode("Rome"), given, path=str(path))
    with pytest.raises(RecipeError, match="no such file"):
        score("generated_code", episode("Rome"), given, path=str(tmp_path / "none.py"))


@needs_isolation
def test_it_sees_nothing_only_the_verifier_may():
    given = task("What?", answer="Rome", secret="hidden")
    assert "hidden" not in str(trace_of(episode("x"), given))
    peek = "def reward(trace):\n    return float('answer' in trace and trace['answer'] == 'x')"
    assert asyncio.run(run_reward(peek, episode("x"), given)).value == 1
    assert asyncio.run(run_reward("def reward(trace):\n    return [][1]", episode("x"), given)).error.startswith(
        "IndexError"
    )
