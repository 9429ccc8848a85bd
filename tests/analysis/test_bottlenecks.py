"""`whetstone why --slow` names the bottleneck of a run from its metrics."""

import json

import pytest
from click.testing import CliRunner

from support.small import SMALL, TEACHING
from whetstone.analysis import find_bottleneck, measure_waits
from whetstone.cli.why import why_command
from whetstone.errors import RunDirectoryError
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train


def rows(rollout, update, rest=0.0, steps=4, **more):
    """Build rows of steps with these seconds."""
    total = rollout + update + rest
    return [
        {"step": k, "time/rollout": rollout, "time/update": update, "time/elapsed_seconds": 50 + k * total,
         **{name.replace("__", "/"): value for name, value in more.items()}}
        for k in range(1, steps + 1)
    ]  # fmt: skip


def episode(name, *turns, tool="search"):
    """Build an episode from (generation, queue, environment) seconds per turn, with a call in the last."""
    return {"id": name, "turns": [{"seconds": list(t), "calls": [[tool, "ok", t[2], False, 0.0]]} for t in turns]}


def diagnose(rows, episodes=(), ahead=0):
    return find_bottleneck(rows, measure_waits(episodes) if episodes else None, admit_ahead=ahead, max_in_flight=64)


EVEN = [episode(f"a#{k}", (0.2, 0.0, 0.8)) for k in range(4)]
"""Episodes of equal length that wait for tools for four fifths of their time."""


def test_the_longest_part_of_a_step_is_named():
    slowness = diagnose(rows(1.0, 3.0))
    assert slowness.bottleneck == "learner"
    assert slowness.parts == pytest.approx({"sampling": 0.25, "learning": 0.75, "transfer": 0, "between": 0})
    assert slowness.seconds == pytest.approx(4)
    assert "75% of a step's 4 s is learning" in slowness.said
    assert diagnose(rows(1.0, 1.0, rest=3.0)).bottleneck == "between"
    slowness = diagnose(rows(1.0, 1.0, rest=3.0, scale__transfer_seconds=2.5))
    assert slowness.bottleneck == "transfer"
    assert slowness.parts["between"] == pytest.approx(0.1)


def test_sampling_time_is_attributed_to_the_engine_or_to_the_wait_of_episodes():
    assert diagnose(rows(4.0, 1.0, time__generation=3.0), EVEN).bottleneck == "engine"
    tools = diagnose(rows(4.0, 1.0, time__generation=1.0), EVEN)
    assert tools.bottleneck == "tools"
    assert tools.waits.environment == pytest.approx(0.8)
    assert "rollout.max_in_flight is 64" in tools.attempt
    queued = [episode(f"a#{k}", (0.9, 0.8, 0.1)) for k in range(4)]
    assert diagnose(rows(4.0, 1.0, time__generation=1.0), queued).bottleneck == "engine_queue"


def test_stragglers_take_several_times_the_median_of_their_group():
    long = [episode(f"a#{k}", (0.2, 0.0, 0.8)) for k in range(4)] + [episode("a#4", (0.2, 0.0, 9.8))]
    slowness = diagnose(rows(10.0, 1.0, time__generation=1.0), long)
    assert slowness.bottleneck == "stragglers"
    assert slowness.waits.stragglers == pytest.approx(10)
    assert "search takes" in slowness.said


def test_replicas_and_workers_of_a_cluster_are_read():
    assert diagnose(rows(4.0, 1.0, scale__replica_utilization=0.9, time__generation=0.1), EVEN).bottleneck == "engine"
    busy = [episode(f"a#{k}", (0.9, 0.0, 0.1)) for k in range(4)]
    idle = {"scale__replica_utilization": 0.2, "scale__worker_queue": 5.0}
    assert diagnose(rows(4.0, 1.0, **idle), busy).bottleneck == "workers"


def test_slowest_tool_is_first_and_the_first_step_is_excluded():
    calls = [episode("a#0", (0.1, 0, 2.0), tool="shell"), episode("a#1", (0.1, 0, 0.5)), episode("a#2", (0.1, 0, 0.5))]
    tools = measure_waits(calls).tools
    assert [tool.name for tool in tools] == ["shell", "search"]
    assert tools[0].share == pytest.approx(2 / 3)
    steps = rows(1.0, 2.0)
    steps[0] |= {"time/rollout": 100.0}
    assert diagnose(steps).seconds == pytest.approx(3)


def test_metrics_without_times_are_refused():
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl: no step has time/rollout"):
        diagnose([{"step": 1, "loss/total": 1.0}])


@pytest.mark.slow
def test_why_slow_names_the_bottleneck_of_a_run(tmp_path):
    overrides = [*SMALL, TEACHING, "supervised=null", "ablations=null", "reinforcement.steps=3"]
    train(load_recipe("demo", overrides), tmp_path, progress=Progress(quiet=True))
    output = CliRunner().invoke(why_command, [str(tmp_path), "--slow"], catch_exceptions=False)
    assert "3 steps" not in output.output  # the first warms up
    assert "2 steps of reinforcement" in output.output
    printed = json.loads(
        CliRunner().invoke(why_command, [str(tmp_path), "--slow", "--json"], catch_exceptions=False).output
    )
    assert printed["bottleneck"] in output.output.splitlines()[0]
    assert sum(printed["parts"].values()) == pytest.approx(1)
    assert printed["waits"]["episodes"] == 3 * 2 * 2
    refused = CliRunner().invoke(why_command, [str(tmp_path), "--slow", "--step", "1"])
    assert "--step: has no effect with --slow" in str(refused.exception)
