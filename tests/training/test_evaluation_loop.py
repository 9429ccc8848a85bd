"""An evaluation is stored while it runs, resumes after a stop, and belongs to one agent."""

import asyncio
import json

import pytest

from support.cli import whetstone
from support.endpoint import served
from support.small import SMALL
from whetstone import training
from whetstone.assembly import assemble
from whetstone.errors import RunDirectoryError
from whetstone.evaluation.lm_eval import harness_json
from whetstone.recipe import load_recipe
from whetstone.training.evaluation_loop import EvaluationRecord, evaluation_protocol


@pytest.fixture(scope="module")
def assembly():
    return assemble(load_recipe("demo", [*SMALL, "evaluation.temperature=1.0", "evaluation.samples=3"]))


def evaluate(assembly, folder=None, *, episodes=6, stop_after=None, seed=0, **protocol):
    """Return (result, number of groups played); stop after a number of groups."""
    groups = []

    def on_group(group):
        groups.append(group)
        if stop_after is not None and len(groups) == stop_after:
            raise KeyboardInterrupt

    async def main():
        record = None
        if folder is not None:
            record = EvaluationRecord(folder)
            tasks = assembly.source.held_out(episodes)
            record.open(evaluation_protocol(assembly, tasks, samples=3, temperature=1.0, seed=seed, **protocol))
        engine = assembly.build_engine()
        try:
            return await training.evaluate_policy(
                assembly,
                engine,
                episodes=episodes,
                samples=3,
                temperature=1.0,
                seed=seed,
                on_group=on_group,
                record=record,
            )
        finally:
            await engine.close()

    return asyncio.run(main())


def plain(came_to):
    return json.loads(json.dumps(came_to.to_json()))


def test_stopped_evaluation_resumes_to_the_same_result(assembly, tmp_path):
    undisturbed, groups = evaluate(assembly)
    with pytest.raises(KeyboardInterrupt):
        evaluate(assembly, tmp_path, stop_after=3)
    stored = (tmp_path / "groups.jsonl").read_bytes()
    assert stored.count(b"\n") == 3
    (tmp_path / "groups.jsonl").write_bytes(stored + b'{"number": 5, "ta')  # truncated by a kill
    resumed, _ = evaluate(assembly, tmp_path)
    assert plain(resumed) == plain(undisturbed)
    assert len((tmp_path / "trajectories.jsonl").read_text().splitlines()) == 18
    assert json.loads((tmp_path / "evaluation.json").read_text())["episodes"] == 18
    lines = (tmp_path / "groups.jsonl").read_bytes()
    more, _ = evaluate(assembly, tmp_path)
    assert plain(more) == plain(undisturbed)
    assert (tmp_path / "groups.jsonl").read_bytes() == lines  # no episode was played again
    larger, _ = evaluate(assembly, tmp_path, episodes=8)
    assert larger.tasks == 8
    assert [g.number for g in groups] == list(range(6))


def test_two_evaluations_are_not_mixed(assembly, tmp_path):
    evaluate(assembly, tmp_path, episodes=2)
    with pytest.raises(RunDirectoryError, match=r"holds another evaluation \(seed was 0 and is 1\)"):
        evaluate(assembly, tmp_path, episodes=2, seed=1)
    with pytest.raises(RunDirectoryError, match="agent was"):
        evaluate(assembly, tmp_path, episodes=2, who="another agent")


def test_result_is_exported_to_the_evaluation_harness(assembly):
    came_to, _ = evaluate(assembly)
    report = harness_json("demo", came_to, {"samples": 3, "seed": 0, "whetstone": "0"})
    assert report["results"]["demo"]["acc,none"] == came_to.success
    assert report["n-samples"]["demo"]["original"] == 6
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def calls_then_answers(number, body):
    """Serve a model that calls the calculator and answers with its result."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return last["content"]
    (tool,) = body["tools"]
    (name,) = tool["function"]["parameters"]["properties"]
    expression = last["content"].removeprefix("Compute ")
    arguments = json.dumps({name: expression})
    call = {"id": "x", "type": "function", "function": {"name": tool["function"]["name"], "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def command(*more):
    return whetstone("evaluate", "demo", *SMALL, *more)


def test_model_behind_an_address_is_evaluated_like_any_other():
    kinds = "tasks.kinds={product: 1}"
    with served(calls_then_answers) as server:
        result = command(kinds, "--policy", server.url, "--model", "m", "--episodes", "5", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["success"], report["tool_calls"], report["turns"]) == (1, 1, 2)
    assert report["protocol"]["agent"] == f"m at {server.url}"
    assert report["tool_productivity"] == 1


def test_evaluation_with_too_many_failures_has_no_result():
    with served(lambda number, body: 400) as server:
        result = command("--policy", server.url, "--model", "m", "--episodes", "3", "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["invalid"] == 3
    assert "too many for a valid result" in result.stderr


def test_invalid_input_is_one_line():
    for more, message in (
        (["--policy", "http://x/v1"], "--policy is a URL: also pass --model NAME"),
        (["--policy", "/no/such/folder"], "no such model folder"),
        (["--samples", "4", "--temperature", "0"], "every sample of a task is the same"),
    ):
        result = command(*more)
        assert (result.returncode, result.stdout) == (2, "")
        assert message in result.stderr
        message = [line for line in result.stderr.splitlines() if "has no effect here" not in line]
        assert len(message) == 1
