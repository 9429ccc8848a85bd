"""What would go wrong in a run is found before it: each check is good where it should be, and bad where not."""

import asyncio
import json

import pytest
import torch

import tests_small
from tests_small import SMALL
from whetstone.assembly import assemble, preflight, preflight_checks
from whetstone.assembly.example_actions import example_of
from whetstone.assembly.preflight_checks import _Probe
from whetstone.chat import Chat
from whetstone.evaluation.checks import CheckStatus
from whetstone.recipe import load_recipe
from whetstone.tools import CallPolicy


def checks(*overrides):
    async def main():
        resolved = load_recipe("demo", [*SMALL, *overrides])
        found = [check async for check in preflight(resolved, check_seconds=600, calls=CallPolicy())]
        return {check.name: check for check in found}

    return asyncio.run(main())


def test_the_demo_is_good_in_everything():
    found = checks()
    assert [name for name, check in found.items() if check.verdict is not CheckStatus.PASS] == []
    assert list(found) == [
        "memory on cpu",
        "policy",
        "template",
        "prompts",
        "tools and expert",
        "reward",
        "episodes",
        "sampler and learner",
        "largest step",
    ]


def test_a_check_beyond_its_deadline_is_a_note_and_those_after_it_are_not_tried(monkeypatch):
    async def endless(self):
        await asyncio.Event().wait()

    async def main():
        resolved = load_recipe("demo", SMALL)
        return {check.name: check async for check in preflight(resolved, check_seconds=0.05)}

    monkeypatch.setattr(_Probe, "template", endless)
    found = asyncio.run(main())
    assert (found["template"].verdict, found["template"].said) == (CheckStatus.WARN, "not finished in 0.05 s")
    assert found["largest step"].said == 'not tried, because "template" is not finished'


def test_a_large_policy_is_tried_on_few_tokens_and_its_largest_step_is_extrapolated(monkeypatch):
    monkeypatch.setattr(preflight_checks, "_LARGE_PARAMETERS", 0)
    monkeypatch.setattr(preflight_checks, "_STEP_SECONDS", 0.0)
    found = checks("reinforcement.micro_batch_tokens=2048")
    assert found["episodes"].said.startswith("2 sampled, ")
    assert found["largest step"].said.startswith("32 tokens forward and backward")
    assert "; 2,048 would take up to " in found["largest step"].said
    assert " and at most " in found["largest step"].said


def test_a_tool_that_the_expert_does_not_use_is_called_once_with_example_arguments():
    found = checks("environment.tools=[pocket_calculator, tests_small:noted]")
    assert tests_small.NOTED == [{"text": "1", "count": 1, "tags": []}]
    assert found["tools and expert"].said.endswith("; 1 more tools respond to a call with example arguments")


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        ({"type": "string"}, "1"),
        ({"type": "string", "minLength": 3}, "111"),
        ({"enum": ["b", "a"]}, "b"),
        ({"type": "integer", "minimum": 5}, 5),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, False),
        ({"type": "array", "items": {"type": "number"}, "minItems": 2}, [1, 1]),
        ({"type": "object", "properties": {"a": {"const": 7}, "b": {}}, "required": ["a"]}, {"a": 7}),
        ({}, "1"),
    ],
)
def test_an_example_follows_its_schema(schema, example):
    assert example_of(schema) == example


@pytest.mark.parametrize(
    ("answers", "verdict", "text"),
    [
        (["4", "5"], CheckStatus.PASS, "supervised.data: 2 demonstrations, "),
        (["4", "5 " * 400, "6 " * 300], CheckStatus.FAIL, "2 of 3 demonstrations are longer than the context of 256"),
        (["4", "<call>calculator(1)</call>"], CheckStatus.WARN, "1 of 2 demonstrations are skipped: "),
    ],
)
def test_doctor_reads_the_demonstrations_of_a_stage(answers, verdict, text, tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}]}
        for answer in answers
    ]
    (tmp_path / "shown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    check = checks("supervised.steps=1", f"supervised.data={tmp_path}/shown.jsonl")["stage data"]
    assert check.verdict is verdict
    assert text in check.said
    if verdict is CheckStatus.FAIL:
        assert f"{tmp_path}/shown.jsonl:2 has" in check.said
        assert "context_length" in check.mend


def test_a_policy_that_is_not_there_is_the_only_thing_said():
    found = checks("policy.tiny=null", "policy.path=nowhere")
    assert list(found) == ["parts"]
    assert found["parts"].verdict is CheckStatus.FAIL
    assert found["parts"].said.startswith("nowhere: no such model folder")


def test_a_reward_that_does_not_tell_right_from_wrong_is_bad():
    found = checks("reward=tests_small:generous")
    assert found["reward"].verdict is CheckStatus.FAIL
    assert found["reward"].said == "1 for the expert, 1 for somebody who does not know"
    assert found["episodes"].verdict is CheckStatus.PASS  # one bad check hides no other


def test_a_reward_that_fails_is_bad_wherever_it_is_asked():
    found = checks("reward=tests_small:unjudged")
    said = "the expert's episode has no score: the reward failed: tests_small.py:"
    assert found["reward"].said.startswith(said)
    assert found["reward"].said.endswith("(unjudged): ConnectionError: the judge is down")
    assert found["episodes"].verdict is CheckStatus.FAIL
    assert "the judge is down" in found["episodes"].said


def test_a_tool_that_does_not_work_is_bad():
    found = checks("environment.tools=[tests_small:broken]")
    assert (found["tools and expert"].verdict, found["tools and expert"].said) == (
        CheckStatus.FAIL,
        "the expert's call of broken returned tool_error: error: no batteries",
    )


def test_rewards_that_are_all_the_same_are_worth_a_note_without_a_warm_up():
    without = [change for change in SMALL if not change.startswith("supervised")]

    async def main():
        resolved = load_recipe("demo", [*without, "supervised=null"])
        return {check.name: check async for check in preflight(resolved, check_seconds=600)}

    found = asyncio.run(main())["episodes"]
    assert found.verdict is CheckStatus.WARN
    assert "no contrast" in found.said


def test_weights_that_are_not_the_samplers_are_found_out():
    async def main():
        probe = _Probe(assemble(load_recipe("demo", SMALL)))
        await probe.episodes()
        before = await probe.agreement()
        with torch.no_grad():
            probe.assembly.policy.model.get_input_embeddings().weight.mul_(1.5)
        return before, await probe.agreement()

    before, after = asyncio.run(main())
    assert (before.verdict, after.verdict) == (CheckStatus.PASS, CheckStatus.FAIL)


def test_a_template_that_rewrites_history_is_worth_a_note():
    async def main():
        assembly = assemble(load_recipe("demo", SMALL))
        tokenizer = assembly.chat.tokenizer
        tokenizer.chat_template = tokenizer.chat_template.replace(
            "{% for message in messages %}", "{{ messages | length }}{% for message in messages %}"
        )
        return await _Probe(assembly.with_components(chat=Chat(tokenizer, assembly.chat.format))).template()

    found = asyncio.run(main())
    assert found.verdict is CheckStatus.WARN
    assert found.said.startswith("rewrites history in 3 of 3 turns")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("x"), RuntimeError("not enough memory: you tried to allocate")]
)
def test_a_step_that_does_not_fit_says_what_would(monkeypatch, error):
    def too_large(self):
        raise error

    monkeypatch.setattr(_Probe, "_largest_step", too_large)
    found = checks()["largest step"]
    assert found.verdict is CheckStatus.FAIL
    assert "activation_checkpointing" in found.mend
