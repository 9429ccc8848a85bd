"""A run in which every episode fails stops immediately with the cause; partial failures are reported everywhere."""

import json
import math

import pytest

from support.cli import whetstone
from support.slow import mostly_slow
from whetstone.chat import user
from whetstone.errors import NoScoredEpisodesError
from whetstone.failure_causes import (
    FIRST_EPISODES,
    StartupFailureMonitor,
    count_causes,
    count_failure_causes,
    find_failure_cause,
    format_causes,
)
from whetstone.strict_json import to_json, to_plain_values
from whetstone.trajectory import EndReason, Score, Trajectory

TINY = (
    "{tiny: {vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, context_length: 96}}"
)
REWARDS = """
import asyncio, math, sys, zlib
import numpy as np
from whetstone.trajectory import Score

async def none(trajectory, task): return None
async def nan(trajectory, task): return Score(math.nan)
async def yes(trajectory, task): return Score(1.0, success="yes")
async def raises(trajectory, task): raise RuntimeError(f"no power at {id(task):#x}")
async def leaves(trajectory, task): sys.exit(0)
async def stops(trajectory, task): raise asyncio.CancelledError
def plain(trajectory, task): return Score(float(len(trajectory.final_text) % 2), success=True)
async def numpy(trajectory, task):
    return Score(np.float32(0.5), parts={"half": np.float64(0.5)}, success=np.bool_(True))
async def some(trajectory, task):
    if zlib.crc32(trajectory.id.encode()) % 3 == 0: raise RuntimeError("sometimes")
    return Score(0.0, success=False)
class Needs:
    def __init__(self, weight): pass
CONSTANT = 3
"""
TOOLS = """
import asyncio, sys
def price(item: str) -> int:
    "Price of an item."
    return 4
class Needs:
    def __init__(self, size): pass
    def put(self, thing: str) -> str:
        "Put it."
        return thing
class Raises(Needs):
    def __init__(self): raise ValueError("no database")
class Empty: pass
FIVE = 5
def unknown(item: "Nope") -> int:
    "?"
    return 1
"""
WORLDS = """
import random, sys
from whetstone.chat import assistant
from whetstone.environments import GameObservation
from whetstone.tasks import Generated
from whetstone.trajectory import Task

class World:
    instruction = "Say anything."
    def begin(self, task, seed): return GameObservation("go")
    def act(self, command): return GameObservation("end", reward=1.0, terminated=True)
    def verdict(self): return {"success": True, "score": 1.0}
    def close(self): pass
class Acts(World):
    def act(self, command): raise RuntimeError("act boom")
class Leaves(World):
    def act(self, command): sys.exit(0)
class Says(World):
    def verdict(self): return None
class Tasks(Generated):
    name, held_out_fraction = "tasks", 4
    def make(self, draw: random.Random, level: int) -> Task:
        return Task("", "", {"n": draw.randrange(1000)})
    def demonstrate(self, task, conversation, tools): return assistant("so")
class Raising(Tasks):
    def demonstrate(self, task, conversation, tools): return assistant(str(int("the")))
"""


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "rewards_here.py").write_text(REWARDS)
    (tmp_path / "tools_here.py").write_text(TOOLS)
    (tmp_path / "worlds_here.py").write_text(WORLDS)
    lines = [json.dumps({"prompt": f"Price of {k}?", "answer": k, "rubric": ["kind"]}) for k in range(200)]
    (tmp_path / "shop.jsonl").write_text("\n".join(lines))
    (tmp_path / "shop.yaml").write_text(
        f"""
policy: {TINY}
chat: {{format: compact}}
tasks: {{source: jsonl, path: shop.jsonl, held_out_fraction: 0.5}}
environment: {{tools: ["tools_here:price"], max_turns: 2}}
reward: "rewards_here:plain"
rollout: {{group_size: 4, max_new_tokens: 3}}
reinforcement: {{steps: 2, tasks_per_step: 2}}
evaluation: {{episodes: 40}}
"""
    )
    (tmp_path / "world.yaml").write_text(
        f"""
policy: {TINY}
chat: {{format: compact}}
tasks: {{source: "worlds_here:Tasks"}}
environment: {{name: "worlds_here:World", actions: text, max_turns: 2}}
reward: verdict
rollout: {{group_size: 2, max_new_tokens: 3}}
reinforcement: {{steps: 1, tasks_per_step: 2}}
evaluation: {{episodes: 4}}
"""
    )
    return tmp_path


@pytest.mark.parametrize("episodes", mostly_slow([4, 40], quick=[4]))
@pytest.mark.parametrize(
    ("reward", "cause"),
    [
        ("none", "rewards_here:none returned None; return a number"),
        ("nan", "ValueError: it returned nan as value"),
        ("yes", "success must be True, False or None, got 'yes'"),
        ("raises", "RuntimeError: no power at 0x"),
        ("leaves", "SystemExit: 0"),
    ],
)
def test_run_in_which_every_reward_fails_stops_with_the_cause(shop, reward, cause, episodes):
    done = whetstone("train", "shop.yaml", f"reward=rewards_here:{reward}", f"evaluation.episodes={episodes}", cwd=shop)
    assert done.returncode == 2
    (message,) = done.stderr.strip().splitlines()[-1:]
    assert message.startswith("whetstone: ")
    assert cause in message
    assert f"({min(episodes, FIRST_EPISODES)})" in message  # the number of failures
    assert not (shop / "runs" / "shop" / "summary.json").exists()
    # after a correction of the reward the same command runs
    assert whetstone("train", "shop.yaml", "evaluation.episodes=4", cwd=shop).returncode == 0


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        (["reward={name: rubric, judge: {name: endpoint, url: 'http://127.0.0.1:9/v1', model: m}}"], "127.0.0.1"),
        (["environment.tools=[{name: mcp, command: [no-such-server]}]"], "no-such-server"),
        (["environment.tools=[{name: mcp, command: ['true']}]"], "the MCP server true: ended before it answered"),
        (
            ["environment.tools=[{name: mcp, command: true --now}]"],
            "the MCP server true --now: ended before it answered",
        ),
    ],
)
def test_run_with_an_unavailable_dependency_stops_with_the_cause(shop, impatient, changes, cause):
    done = whetstone("train", "shop.yaml", "evaluation.episodes=4", *changes, cwd=shop)
    assert done.returncode == 2
    assert cause in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("world", "cause"),
    [
        ("Acts", "RuntimeError: act boom"),
        ("Leaves", "SystemExit: 0"),
        ("Says", "verdict() returned None, not a mapping"),
    ],
)
@pytest.mark.parametrize("supervised", [[], ["supervised={steps: 9, batch_size: 4}"]])
def test_failing_environment_is_reported_once_and_the_run_stops(shop, world, cause, supervised):
    done = whetstone("train", "world.yaml", f"environment.name=worlds_here:{world}", *supervised, cwd=shop)
    assert done.returncode == 2
    assert cause in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_expert_that_solves_nothing_ends_the_warm_up(shop):
    done = whetstone(
        "train", "world.yaml", "reward=rewards_here:some", "supervised={steps: 20, batch_size: 4}", cwd=shop
    )
    assert done.returncode == 2
    assert "none of the first 32 demonstrations solved its task" in done.stderr


@pytest.mark.slow
def test_expert_that_raises_is_reported_with_file_and_line(shop):
    raising = "tasks.source=worlds_here:Raising"
    done = whetstone("train", "world.yaml", raising, "supervised={steps: 1}", "evaluation.episodes=2", cwd=shop)
    assert done.returncode == 2
    assert "worlds_here.py:26 (demonstrate): ValueError: invalid literal for int() with base 10: 'the'" in done.stderr


@pytest.mark.slow
def test_partial_failures_are_reported_everywhere_with_number_and_cause(shop):
    done = whetstone("train", "shop.yaml", "reward=rewards_here:some", cwd=shop)
    assert done.returncode == 0
    run = shop / "runs" / "shop"
    summary = json.loads((run / "summary.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    failed = sum(row["episode/invalid"] for row in rows)
    cause = "the reward failed: rewards_here.py:16 (some): RuntimeError: sometimes"
    assert 0 < failed < 16
    assert summary["failed"] == {"episodes": failed, "causes": {cause: failed}}
    after = summary["evaluations"]["reinforcement"]
    assert after["causes"] == {cause: after["invalid"]}
    assert f"{after['invalid']} of 40 episodes have no score: {cause}" in done.stdout
    assert f"episodes have no score: {cause}" in done.stderr  # next to the progress
    assert " failed" in done.stderr
    page = (run / "report.html").read_text()
    assert f"{failed:.0f} episodes have no score: {cause} ({failed:.0f})" in page
    printed = whetstone("why", run, cwd=shop.parent)  # from any working directory
    assert f"{failed:.0f} episodes have no score: {cause} ({failed:.0f})" in printed.stdout
    step = next(row["step"] for row in rows if row["episode/invalid"])
    listing = whetstone("why", run, "--step", step).stdout
    assert "none  group-" in listing
    assert cause in listing
    id = next(line.split()[1] for line in listing.splitlines() if cause in line)
    assert cause in whetstone("why", run, id, "--no-weights").stdout
    report = json.loads(whetstone("why", run, "--json").stdout)
    assert report["failed"] == {cause: failed}
    assert sum(row["failed"] for row in report["steps"]) == pytest.approx(failed / 8)
    report = whetstone("evaluate", run, "--json")
    assert json.loads(report.stdout)["causes"] == after["causes"]
    assert report.returncode == 1
    assert cause in report.stderr


def test_plain_function_and_numbers_of_other_libraries_are_rewards(shop):
    assert whetstone("train", "shop.yaml", "evaluation.episodes=4", cwd=shop).returncode == 0
    run = ["--run-dir", "runs/numpy"]
    done = whetstone("train", "shop.yaml", "reward=rewards_here:numpy", "evaluation.episodes=4", *run, cwd=shop)
    assert done.returncode == 0
    summary = json.loads((shop / "runs/numpy/summary.json").read_text())
    assert summary["evaluations"]["reinforcement"]["reward"] == 0.5
    printed = whetstone("rollout", "shop.yaml", "reward=rewards_here:numpy", "-n", 1, "--json", cwd=shop)
    assert json.loads(printed.stdout)["reward"] == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("reward=rewards_here:Needs", 'reward "rewards_here:Needs" cannot be created: weight is a positional argument'),
        ("reward=rewards_here:CONSTANT", 'reward "rewards_here:CONSTANT" is 3, not a function or class'),
        ("environment.tools=['tools_here:Needs']", "size is a positional argument"),
        (
            "environment.tools=['tools_here:Raises']",
            "cannot be created: tools_here.py:12 (__init__): ValueError: no data",
        ),
        ("environment.tools=['tools_here:Empty']", 'tool "Empty" has no public method'),
        ("environment.tools=['tools_here:FIVE']", "5 is not a tool"),
        ("environment.tools=['tools_here:unknown']", "name 'Nope' is not defined"),
    ],
)
def test_invalid_component_is_one_line_before_the_run(shop, change, message):
    done = whetstone("train", "shop.yaml", change, cwd=shop)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (shop / "runs" / "shop" / "metrics.jsonl").exists()


def strict(text):
    def refuse(word):
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def test_files_and_output_are_strict_json(shop):
    changes = ["reward=rewards_here:some", "supervised=null", "evaluation.episodes=4"]
    assert whetstone("train", "shop.yaml", *changes, cwd=shop).returncode in (0, 2)
    for path in (shop / "runs").rglob("*.json*"):
        for document in [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines():
            strict(document)
    assert strict(to_json({"a": [math.nan, math.inf, 1.5]})) == {"a": [None, None, 1.5]}
    with pytest.raises(TypeError, match=r"builtins\.object cannot be written as JSON"):
        to_plain_values({"a": object()})


# -- causes


def episode(error=None, *, ended=EndReason.ERROR, score=None):
    return Trajectory("e", "t", (user("x"),), (), ended, error, score=score)


def test_causes_that_differ_only_in_numbers_are_one():
    errors = [f"TimeoutError: episode {k} at {k:#x}" for k in range(3)] + ["KeyError: 'a'", None]
    assert count_failure_causes(map(episode, errors)) == {
        "TimeoutError: episode 0 at 0x0": 3, "KeyError: 'a'": 1, "ended by error": 1,
    }  # fmt: skip
    assert count_failure_causes([episode("stopped", ended=EndReason.ABORTED), episode(score=Score(1.0))]) == {}
    assert find_failure_cause(episode("first line\nsecond")) == "first line"
    assert len(find_failure_cause(episode("x" * 1000))) == 200
    assert (
        find_failure_cause(episode(ended=EndReason.MAX_TURNS, score=Score(0.5))) == "ended by max_turns with reward 0.5"
    )


def test_most_frequent_causes_are_named_and_others_counted():
    counts = count_causes("aaabbc" + "defgh", most=3)
    assert counts == {"a": 3, "b": 2, "c": 1, "others": 5}
    assert sum(counts.values()) == 11
    assert format_causes(counts) == "a (3), b (2), and 6 others"
    assert format_causes({"a": 1}) == "a (1)"


def test_run_ends_only_if_the_first_episodes_have_no_success():
    def seen(*causes):
        beginning = StartupFailureMonitor()
        for cause in causes:
            beginning.record_result(cause)
        beginning.conclude()

    seen(*["broken"] * (FIRST_EPISODES - 1), None, *["broken"] * 500)
    seen()
    with pytest.raises(NoScoredEpisodesError, match=rf"none of the first {FIRST_EPISODES} episodes could be scored"):
        seen(*["broken"] * FIRST_EPISODES, None)
    with pytest.raises(NoScoredEpisodesError, match=r"none of the first 2 episodes could be scored: a \(1\), b \(1\)"):
        seen("a", "b")
    with pytest.raises(NoScoredEpisodesError, match=r"ended by context_full \(2\), b \(1\); use a model with a longer"):
        seen("ended by context_full", "ended by context_full", "b")
    with pytest.raises(NoScoredEpisodesError, match=r"a \(1\), ended by max_turns \(1\)$"):
        seen("a", "ended by max_turns")
