"""An evaluation is kept as it goes, goes on where it stopped, and is of one agent alone."""

import asyncio
import json

import pytest

from tests_cli import whetstone
from tests_endpoint import served
from tests_small import SMALL
from whetstone import training
from whetstone.assembly import assemble
from whetstone.errors import RunDirectoryError
from whetstone.evaluation.harness import harness_json
from whetstone.recipe import load_recipe
from whetstone.training.evaluating import EvaluationRecord, protocol_of


@pytest.fixture(scope="module")
def assembly():
    return assemble(load_recipe("demo", [*SMALL, "evaluation.temperature=1.0", "evaluation.samples=3"]))


def evaluated(assembly, folder=None, *, episodes=6, stop_after=None, seed=0, **protocol):
    """(what it came to, how many groups were heard of); stops where it is told to."""
    heard = []

    def hear(group):
        heard.append(group)
        if stop_after is not None and len(heard) == stop_after:
            raise KeyboardInterrupt

    async def main():
        record = None
        if folder is not None:
            record = EvaluationRecord(folder)
            tasks = assembly.source.held_out(episodes)
            record.open(protocol_of(assembly, tasks, samples=3, temperature=1.0, seed=seed, **protocol))
        engine = assembly.engine()
        try:
            return await training.evaluate(
                assembly, engine, episodes=episodes, samples=3, temperature=1.0, seed=seed, heard=hear, record=record
            )
        finally:
            await engine.close()

    return asyncio.run(main())


def plain(came_to):
    return json.loads(json.dumps(came_to.to_json()))


def test_one_that_was_stopped_goes_on_and_comes_to_the_same(assembly, tmp_path):
    whole, groups = evaluated(assembly)
    with pytest.raises(KeyboardInterrupt):
        evaluated(assembly, tmp_path, stop_after=3)
    kept = (tmp_path / "groups.jsonl").read_bytes()
    assert kept.count(b"\n") == 3
    (tmp_path / "groups.jsonl").write_bytes(kept + b'{"number": 5, "ta')  # torn by a kill
    again, _ = evaluated(assembly, tmp_path)
    assert plain(again) == plain(whole)
    assert len((tmp_path / "trajectories.jsonl").read_text().splitlines()) == 18
    assert json.loads((tmp_path / "evaluation.json").read_text())["episodes"] == 18
    lines = (tmp_path / "groups.jsonl").read_bytes()
    more, _ = evaluated(assembly, tmp_path)
    assert plain(more) == plain(whole)
    assert (tmp_path / "groups.jsonl").read_bytes() == lines  # nothing was played again
    larger, _ = evaluated(assembly, tmp_path, episodes=8)
    assert larger.tasks == 8
    assert [g.number for g in groups] == list(range(6))


def test_two_evaluations_are_not_mixed(assembly, tmp_path):
    evaluated(assembly, tmp_path, episodes=2)
    with pytest.raises(RunDirectoryError, match=r"holds another evaluation \(seed was 0 and is 1\)"):
        evaluated(assembly, tmp_path, episodes=2, seed=1)
    with pytest.raises(RunDirectoryError, match="agent was"):
        evaluated(assembly, tmp_path, episodes=2, who="somebody else")


def test_the_harness_reads_it(assembly):
    came_to, _ = evaluated(assembly)
    told = harness_json("demo", came_to, {"samples": 3, "seed": 0, "whetstone": "0"})
    assert told["results"]["demo"]["acc,none"] == came_to.success
    assert told["n-samples"]["demo"]["original"] == 6
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def calls_then_answers(number, body):
    """A model that calls the calculator and answers what it says."""
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


def test_a_model_behind_an_address_is_evaluated_like_any_other():
    kinds = "tasks.kinds={product: 1}"
    with served(calls_then_answers) as server:
        found = command(kinds, "--policy", server.url, "--model", "m", "--episodes", "5", "--json")
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert (told["success"], told["tool_calls"], told["turns"]) == (1, 1, 2)
    assert told["protocol"]["agent"] == f"m at {server.url}"
    assert told["tool_productivity"] == 1


def test_where_too_much_fails_it_says_nothing_of_the_agent():
    with served(lambda number, body: 400) as server:
        found = command("--policy", server.url, "--model", "m", "--episodes", "3", "--json")
    assert found.returncode == 1
    assert json.loads(found.stdout)["invalid"] == 3
    assert "too many for the rest to say anything of the agent" in found.stderr


def test_bad_input_is_one_line():
    for more, said in (
        (["--policy", "http://x/v1"], "--policy is a URL: also pass --model NAME"),
        (["--policy", "/no/such/folder"], "no such model folder"),
        (["--samples", "4", "--temperature", "0"], "every sample of a task is the same"),
    ):
        found = command(*more)
        assert (found.returncode, found.stdout) == (2, "")
        assert said in found.stderr
        said = [line for line in found.stderr.splitlines() if "has no effect here" not in line]
        assert len(said) == 1
