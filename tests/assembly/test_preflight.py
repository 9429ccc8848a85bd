"""What would go wrong in a run is found before it: each check is good where it should be, and bad where not."""

import asyncio
from dataclasses import replace

import pytest
import torch

from tests_small import SMALL
from whetstone.assembly import assemble, preflight
from whetstone.assembly.preflight_checks import _Probe
from whetstone.chat import Chat
from whetstone.evaluation.checks import Verdict
from whetstone.recipe import load_recipe


def checks(*overrides):
    async def main():
        found = [check async for check in preflight(load_recipe("demo", [*SMALL, *overrides]))]
        return {check.name: check for check in found}

    return asyncio.run(main())


def test_the_demo_is_good_in_everything():
    found = checks()
    assert [name for name, check in found.items() if check.verdict is not Verdict.GOOD] == []
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


def test_a_policy_that_is_not_there_is_the_only_thing_said():
    found = checks("policy.tiny=null", "policy.path=nowhere")
    assert list(found) == ["parts"]
    assert found["parts"].verdict is Verdict.BAD
    assert found["parts"].said.startswith("nowhere: no such model folder")


def test_a_reward_that_does_not_tell_right_from_wrong_is_bad():
    found = checks("reward=tests_small:generous")
    assert found["reward"].verdict is Verdict.BAD
    assert found["reward"].said == "1 for the expert, 1 for somebody who does not know"
    assert found["episodes"].verdict is Verdict.GOOD  # one bad check hides no other


def test_a_reward_that_fails_is_bad_wherever_it_is_asked():
    found = checks("reward=tests_small:unjudged")
    said = "the expert's episode has no score: the reward failed: ConnectionError: the judge is down"
    assert found["reward"].said == said
    assert found["episodes"].verdict is Verdict.BAD
    assert "the judge is down" in found["episodes"].said


def test_a_tool_that_does_not_work_is_bad():
    found = checks("environment.tools=[tests_small:broken]")
    assert (found["tools and expert"].verdict, found["tools and expert"].said) == (
        Verdict.BAD,
        "the expert's call of broken came to tool_error: error: no batteries",
    )


def test_rewards_that_are_all_the_same_are_worth_a_note_without_a_warm_up():
    without = [change for change in SMALL if not change.startswith("supervised")]

    async def main():
        resolved = load_recipe("demo", [*without, "supervised=null"])
        return {check.name: check async for check in preflight(resolved)}

    found = asyncio.run(main())["episodes"]
    assert found.verdict is Verdict.NOTE
    assert "nothing to compare yet" in found.said


def test_weights_that_are_not_the_samplers_are_found_out():
    async def main():
        probe = _Probe(assemble(load_recipe("demo", SMALL)))
        await probe.episodes()
        before = await probe.agreement()
        with torch.no_grad():
            probe.assembly.policy.model.get_input_embeddings().weight.mul_(1.5)
        return before, await probe.agreement()

    before, after = asyncio.run(main())
    assert (before.verdict, after.verdict) == (Verdict.GOOD, Verdict.BAD)


def test_a_template_that_rewrites_history_is_worth_a_note():
    async def main():
        assembly = assemble(load_recipe("demo", SMALL))
        tokenizer = assembly.chat.tokenizer
        tokenizer.chat_template = tokenizer.chat_template.replace(
            "{% for message in messages %}", "{{ messages | length }}{% for message in messages %}"
        )
        return await _Probe(replace(assembly, chat=Chat(tokenizer, assembly.chat.format))).template()

    found = asyncio.run(main())
    assert found.verdict is Verdict.NOTE
    assert found.said.startswith("rewrites history in 3 of 3 turns")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("x"), RuntimeError("not enough memory: you tried to allocate")]
)
def test_a_step_that_does_not_fit_says_what_would(monkeypatch, error):
    def too_large(self, settings):
        raise error

    monkeypatch.setattr(_Probe, "_largest_step", too_large)
    found = checks()["largest step"]
    assert found.verdict is Verdict.BAD
    assert "activation_checkpointing" in found.mend
