"""Demonstrations that the policy cannot reproduce are named: their number, the longest, and the key to change."""

import asyncio
import json

import pytest

from support.cli import whetstone
from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.assembly.preflight_checks import check_stage_data
from whetstone.assembly.stage_datasets import check_data, find_policy_limit_problems
from whetstone.chat import assistant, user
from whetstone.data.policy_limits import PolicyLimits
from whetstone.evaluation.check_result import CheckStatus
from whetstone.recipe import load_recipe
from whetstone.trajectory import Author, EndReason, Tokens, Trajectory, Turn

NOTHING = Tokens.from_ids((), Author.ENVIRONMENT)


def demonstration(name, *lengths, author=Author.EXPERT):
    turns = (Turn(NOTHING, Tokens.from_ids((7,) * length, author), assistant("")) for length in lengths)
    return Trajectory(name, name, (user("?"),), tuple(turns), EndReason.TERMINATED)


def test_an_answer_of_the_limit_fits_and_a_longer_one_is_counted():
    # 4 tokens with the end of the turn can be sampled with a limit of 4, and 5 cannot
    limits = PolicyLimits(max_new_tokens=4, max_turns=9).add([demonstration("a", 4, 1), demonstration("b", 5, 2)])
    (problem,) = limits.find_problems("supervised.data")
    assert problem.text.startswith(
        "supervised.data: 1 of 2 demonstrations have an answer that the policy cannot produce"
    )
    assert "rollout.max_new_tokens is 4, and the longest answer has 5 tokens (b)" in problem.text
    assert problem.remedy == "set rollout.max_new_tokens=5, or shorten the answers"
    raised = PolicyLimits(max_new_tokens=5, max_turns=9).add([demonstration("a", 4, 1), demonstration("b", 5, 2)])
    assert raised.find_problems("supervised.data") == []


def test_turns_beyond_the_limit_are_counted():
    limits = PolicyLimits(max_new_tokens=9, max_turns=2).add([demonstration("a", 1, 1), demonstration("b", 1, 1, 1)])
    (problem,) = limits.find_problems("offline.data")
    assert "1 of 2 demonstrations have more turns" in problem.text
    assert "environment.max_turns is 2, and the longest demonstration has 3 turns (b)" in problem.text
    assert problem.remedy == "set environment.max_turns=3, or shorten the demonstrations"


def test_an_inserted_turn_is_no_example_and_an_episode_without_turns_is_ignored():
    inserted = demonstration("a", 9, author=Author.INSERTED)
    limits = PolicyLimits(max_new_tokens=4, max_turns=1).add([inserted, demonstration("b")])
    assert (limits.count, limits.find_problems("x")) == (1, [])


@pytest.fixture(scope="module")
def conversations(tmp_path_factory):
    """Two conversations: a short answer, and one of about 40 tokens."""
    file = tmp_path_factory.mktemp("data") / "two.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}]}
        for answer in ("4", "4 " * 20)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def overrides(conversations, tokens):
    own = [f"supervised.data={conversations}", f"rollout.max_new_tokens={tokens}"]
    return [*SMALL, "ablations=null", *own]


@pytest.mark.parametrize(("tokens", "is_named"), [(8, True), (400, False)])
def test_a_run_and_doctor_name_them(conversations, tokens, is_named):
    resolved = load_recipe("demo", overrides(conversations, tokens))
    assembly = assemble(resolved)
    check_data(assembly, resolved)
    problems = find_policy_limit_problems(assembly, resolved)
    assert bool(problems) is is_named
    check = asyncio.run(check_stage_data(assembly))
    assert check.verdict is (CheckStatus.WARN if is_named else CheckStatus.PASS)
    if is_named:
        assert problems == [f"{check.said}; {check.mend}"]
        assert "supervised.data: 1 of 2 demonstrations" in check.said
        assert f"({conversations}:2)" in check.said


def test_data_check_names_them(conversations):
    done = whetstone("data", "check", conversations, "demo", *overrides(conversations, 8))
    assert done.returncode == 0, done.stderr
    assert "1 of 2 demonstrations have an answer that the policy cannot produce" in done.stdout
    report = json.loads(
        whetstone("data", "check", conversations, "demo", *overrides(conversations, 8), "--json").stdout
    )
    long = report["limits"]["rollout.max_new_tokens"]
    assert (long["limit"], long["exceeded_by"]) == (8, 1)
    assert long["most"] > 8
