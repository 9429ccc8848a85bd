"""What a run waits for is named by its numbers."""

import json

import pytest
from click.testing import CliRunner

from tests_small import SMALL, TEACHING
from whetstone.analysis import slowness_of, waits_of
from whetstone.cli.why import why
from whetstone.errors import RunDirectoryError
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train


def rows(rollout, update, rest=0.0, steps=4, **more):
    """Steps of these seconds each."""
    whole = rollout + update + rest
    return [
        {"step": k, "time/rollout": rollout, "time/update": update, "time/elapsed_seconds": 50 + k * whole,
         **{name.replace("__", "/"): value for name, value in more.items()}}
        for k in range(1, steps + 1)
    ]  # fmt: skip


def episode(name, *turns, tool="search"):
    """(generation, queue, environment) of each turn, with a call that took all of the last."""
    return {"id": name, "turns": [{"seconds": list(t), "calls": [[tool, "ok", t[2], False, 0.0]]} for t in turns]}


def found(rows, episodes=(), ahead=0):
    return slowness_of(rows, waits_of(episodes) if episodes else None, admit_ahead=ahead, max_in_flight=64)


EVEN = [episode(f"a#{k}", (0.2, 0.0, 0.8)) for k in range(4)]
"""Episodes that wait for tools for four fifths of their time, all as long."""


def test_the_longest_part_of_a_step_is_named():
    told = found(rows(1.0, 3.0))
    assert told.bottleneck == "learner"
    assert told.parts == pytest.approx({"sampling": 0.25, "learning": 0.75, "transfer": 0, "between": 0})
    assert told.seconds == pytest.approx(4)
    assert "75% of a step's 4 s is learning" in told.said
    assert found(rows(1.0, 1.0, rest=3.0)).bottleneck == "between"
    told = found(rows(1.0, 1.0, rest=3.0, scale__transfer_seconds=2.5))
    assert told.bottleneck == "transfer"
    assert told.parts["between"] == pytest.approx(0.1)


def test_sampling_is_the_engines_where_it_computes_and_else_what_episodes_wait_for():
    assert found(rows(4.0, 1.0, time__generation=3.0), EVEN).bottleneck == "engine"
    tools = found(rows(4.0, 1.0, time__generation=1.0), EVEN)
    assert tools.bottleneck == "tools"
    assert tools.waits.environment == pytest.approx(0.8)
    assert "rollout.max_in_flight is 64" in tools.attempt
    queued = [episode(f"a#{k}", (0.9, 0.8, 0.1)) for k in range(4)]
    assert found(rows(4.0, 1.0, time__generation=1.0), queued).bottleneck == "engine_queue"


def test_stragglers_are_episodes_several_times_as_long_as_their_groups_middle():
    long = [episode(f"a#{k}", (0.2, 0.0, 0.8)) for k in range(4)] + [episode("a#4", (0.2, 0.0, 9.8))]
    slowness = found(rows(10.0, 1.0, time__generation=1.0), long)
    assert slowness.bottleneck == "stragglers"
    assert slowness.waits.stragglers == pytest.approx(10)
    assert "search takes" in slowness.said


def test_of_a_cluster_its_replicas_and_workers_are_read():
    assert found(rows(4.0, 1.0, scale__replica_utilization=0.9, time__generation=0.1), EVEN).bottleneck == "engine"
    busy = [episode(f"a#{k}", (0.9, 0.0, 0.1)) for k in range(4)]
    idle = {"scale__replica_utilization": 0.2, "scale__worker_queue": 5.0}
    assert found(rows(4.0, 1.0, **idle), busy).bottleneck == "workers"


def test_the_costliest_tool_comes_first_and_the_first_step_does_not_count():
    calls = [episode("a#0", (0.1, 0, 2.0), tool="shell"), episode("a#1", (0.1, 0, 0.5)), episode("a#2", (0.1, 0, 0.5))]
    tools = waits_of(calls).tools
    assert [tool.name for tool in tools] == ["shell", "search"]
    assert tools[0].share == pytest.approx(2 / 3)
    steps = rows(1.0, 2.0)
    steps[0] |= {"time/rollout": 100.0}
    assert found(steps).seconds == pytest.approx(3)


def test_what_says_no_time_is_refused():
    with pytest.raises(RunDirectoryError, match="no step on record says how long"):
        found([{"step": 1, "loss/total": 1.0}])


@pytest.mark.slow
def test_why_slow_names_the_bottleneck_of_a_run(tmp_path):
    overrides = [*SMALL, TEACHING, "supervised=null", "ablations=null", "reinforcement.steps=3"]
    train(load_recipe("demo", overrides), tmp_path, progress=Progress(quiet=True))
    shown = CliRunner().invoke(why, [str(tmp_path), "--slow"], catch_exceptions=False)
    assert "3 steps" not in shown.output  # the first warms up
    assert "2 steps of reinforcement" in shown.output
    told = json.loads(CliRunner().invoke(why, [str(tmp_path), "--slow", "--json"], catch_exceptions=False).output)
    assert told["bottleneck"] in shown.output.splitlines()[0]
    assert sum(told["parts"].values()) == pytest.approx(1)
    assert told["waits"]["episodes"] == 3 * 2 * 2
    refused = CliRunner().invoke(why, [str(tmp_path), "--slow", "--step", "1"])
    assert "--slow is of the whole run" in str(refused.exception)
