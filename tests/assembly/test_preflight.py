"""`whetstone doctor`: checks of a recipe before a run pass for valid recipes and fail for invalid ones."""

import asyncio
import json
import sys
from types import SimpleNamespace

import pytest
import torch

from support import small
from support.small import SMALL
from whetstone.assembly import assemble, largest_step, preflight_checks, run_preflight_checks
from whetstone.assembly.preflight_checks import _Probe, build_example_value, judge_failures
from whetstone.chat import Chat
from whetstone.evaluation.check_result import CheckStatus
from whetstone.recipe import load_recipe
from whetstone.tools import CallPolicy
from whetstone.trajectory import CallRecord


def checks(*overrides):
    async def main():
        resolved = load_recipe("demo", [*SMALL, *overrides])
        results = [check async for check in run_preflight_checks(resolved, check_seconds=600, calls=CallPolicy())]
        return {check.name: check for check in results}

    return asyncio.run(main())


def test_demo_passes_every_check():
    results = checks("rollout.max_new_tokens=40")
    assert [name for name, check in results.items() if check.verdict is not CheckStatus.PASS] == []
    assert list(results) == [
        "memory on cpu",
        "policy",
        "sampling",
        "template",
        "prompts",
        "tools and expert",
        "reward",
        "episodes",
        "sampler and learner",
        "largest step",
    ]


def test_failing_tool_is_undecided_only_if_its_arguments_can_cause_every_error():
    key = [CallRecord("look", "tool_failed", 0.1, error="shop.py:11 (look): KeyError: '1'")] * 2
    check = judge_failures([*key, CallRecord("add", "ok", 0.1)])
    assert (check.verdict, check.is_decided) == (CheckStatus.WARN, False)
    assert "the arguments may be the cause" in check.said
    bug = CallRecord("look", "tool_failed", 0.1, error="shop.py:12 (look): TypeError: 'NoneType'")
    assert judge_failures([*key, bug]).verdict is CheckStatus.FAIL
    assert judge_failures([*key, CallRecord("look", "ok", 0.1)]) is None


def test_check_beyond_its_deadline_is_a_note_and_later_checks_are_skipped(monkeypatch):
    async def endless(self):
        await asyncio.Event().wait()

    async def main():
        resolved = load_recipe("demo", SMALL)
        return {check.name: check async for check in run_preflight_checks(resolved, check_seconds=0.05)}

    monkeypatch.setattr(_Probe, "template", endless)
    results = asyncio.run(main())
    assert (results["template"].verdict, results["template"].said) == (CheckStatus.WARN, "not finished in 0.05 s")
    assert results["largest step"].said == 'not tried, because "template" is not finished'


def test_large_policy_is_tested_on_few_tokens_and_its_largest_step_is_extrapolated(monkeypatch):
    monkeypatch.setattr(preflight_checks, "_LARGE_PARAMETERS", 0)
    monkeypatch.setattr(largest_step, "_STEP_SECONDS", 0.0)
    results = checks("reinforcement.micro_batch_tokens=2048")
    assert results["episodes"].said.startswith("2 sampled, ")
    assert results["largest step"].said.startswith("32 tokens forward and backward")
    assert "; 2,048 would take up to " in results["largest step"].said
    assert " and at most " in results["largest step"].said


def test_start_up_of_the_first_update_is_not_extrapolated(monkeypatch):
    clock, sizes = [0.0], []

    def step(segments, loss):
        sizes.append(sum(map(len, segments)))
        clock[0] += sizes[-1] / 1000 + (0.9 if len(sizes) == 1 else 0.0)

    monkeypatch.setattr(largest_step, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    learner, policy = SimpleNamespace(step=step), SimpleNamespace(tokenizer=range(9), context_length=256)
    # 32, 128 and 512 tokens take 0.672 s; 2,048 tokens would exceed the time budget of 2 s
    assert largest_step.measure_largest_step(learner, policy, 4096) == (pytest.approx(0.512), 512)
    assert sizes == [32, 32, 128, 512]


def test_tool_unused_by_the_expert_is_called_once_with_example_arguments():
    results = checks("environment.tools=[pocket_calculator, support.small:noted]")
    assert small.NOTED == [{"text": "1", "count": 1, "tags": []}]
    assert results["tools and expert"].said.endswith("; 1 more tools respond to a call with example arguments")


def test_expert_that_writes_more_than_the_policy_may_sample_is_a_warning():
    check = checks("rollout.max_new_tokens=6")["tools and expert"]
    assert check.verdict is CheckStatus.WARN
    assert check.said.startswith("the expert: 1 of 1 demonstrations have an answer that the policy cannot produce")
    assert check.mend.startswith("set rollout.max_new_tokens=")


def test_answer_length_that_no_prompt_leaves_is_a_warning():
    probe = _Probe(assemble(load_recipe("demo", [*SMALL, "rollout.max_new_tokens=255"])))
    check = asyncio.run(probe.prompts())
    assert check.verdict is CheckStatus.WARN
    assert check.said.endswith(": none leaves the 255 tokens of rollout.max_new_tokens for an answer")
    assert check.mend.startswith("reduce rollout.max_new_tokens; or use a model with a longer context")


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
    assert build_example_value(schema) == example


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


def test_missing_policy_is_the_only_finding():
    results = checks("policy.tiny=null", "policy.path=nowhere")
    assert list(results) == ["parts"]
    assert results["parts"].verdict is CheckStatus.FAIL
    assert results["parts"].said.startswith("nowhere: no such model folder")


def test_constant_reward_fails():
    results = checks("reward=support.small:generous")
    assert results["reward"].verdict is CheckStatus.FAIL
    assert results["reward"].said == "1 for the expert, 1 for a wrong answer"
    assert results["episodes"].verdict is CheckStatus.PASS  # one bad check hides no other


def test_an_expert_that_may_fail_is_a_note():
    errs = "supervised.tasks.error_rate=1"
    assert checks(errs)["reward"].verdict is CheckStatus.FAIL
    check = checks(errs, "supervised.solved_only=false")["reward"]
    assert check.verdict is CheckStatus.WARN
    assert "supervised.solved_only: false permits" in check.said


def test_reward_that_raises_fails_every_check_that_uses_it():
    results = checks("reward=support.small:unjudged")
    message = "the expert's episode has no score: the reward failed: support/small.py:"
    assert results["reward"].said.startswith(message)
    assert results["reward"].said.endswith("(unjudged): ConnectionError: the judge is down")
    assert results["episodes"].verdict is CheckStatus.FAIL
    assert "the judge is down" in results["episodes"].said


def test_tool_that_raises_fails():
    results = checks("environment.tools=[support.small:broken]")
    assert (results["tools and expert"].verdict, results["tools and expert"].said) == (
        CheckStatus.FAIL,
        "the expert's call of broken returned tool_error: error: no batteries",
    )


def test_server_that_does_not_start_is_the_only_finding(tmp_path):
    pytest.importorskip("mcp", reason="the SDK of MCP: pip install -e '.[mcp]'")
    (tmp_path / "server.py").write_text("import package_that_is_missing\n")
    server = f"{{name: mcp, command: [{sys.executable}, {tmp_path / 'server.py'}]}}"
    results = checks("supervised=null", f"environment.tools=[pocket_calculator, {server}]")
    assert [name for name, check in results.items() if check.verdict is CheckStatus.FAIL] == ["tools"]
    assert "ended before it answered" in results["tools"].said
    assert results["template"].said == 'not tried, because "tools" failed'
    assert results["largest step"].verdict is CheckStatus.PASS


def test_equal_rewards_without_a_warm_up_are_a_note():
    without = [change for change in SMALL if not change.startswith("supervised")]

    async def main():
        resolved = load_recipe("demo", [*without, "supervised=null"])
        return {check.name: check async for check in run_preflight_checks(resolved, check_seconds=600)}

    results = asyncio.run(main())["episodes"]
    assert results.verdict is CheckStatus.WARN
    assert "all rewards are equal" in results.said


def test_weights_that_differ_from_the_samplers_fail():
    async def main():
        probe = _Probe(assemble(load_recipe("demo", SMALL)))
        await probe.episodes()
        before = await probe.agreement()
        with torch.no_grad():
            probe.assembly.policy.model.get_input_embeddings().weight.mul_(1.5)
        return before, await probe.agreement()

    before, after = asyncio.run(main())
    assert (before.verdict, after.verdict) == (CheckStatus.PASS, CheckStatus.FAIL)


def test_template_that_rewrites_history_is_a_note():
    async def main():
        assembly = assemble(load_recipe("demo", SMALL))
        tokenizer = assembly.chat.tokenizer
        tokenizer.chat_template = tokenizer.chat_template.replace(
            "{% for message in messages %}", "{{ messages | length }}{% for message in messages %}"
        )
        return await _Probe(assembly.with_components(chat=Chat(tokenizer, assembly.chat.format))).template()

    results = asyncio.run(main())
    assert results.verdict is CheckStatus.WARN
    assert results.said.startswith("rewrites history in 3 of 3 turns")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("x"), RuntimeError("not enough memory: you tried to allocate")]
)
def test_largest_step_beyond_memory_fails_with_a_remedy(monkeypatch, error):
    def too_large(*measured):
        raise error

    monkeypatch.setattr(preflight_checks, "measure_largest_step", too_large)
    results = checks()["largest step"]
    assert results.verdict is CheckStatus.FAIL
    assert "activation_checkpointing" in results.mend
