"""A tool that fails in every call is reported before anything else: during a run, after it, and by every command."""

import asyncio
import json
import re

import pytest
from click.testing import CliRunner

from support.failing_tools import Orders
from support.quiet_progress import Lines
from support.small import SMALL
from whetstone.assembly import assemble, run_preflight_checks
from whetstone.cli.main import cli
from whetstone.evaluation.check_result import CheckStatus
from whetstone.recipe import load_recipe
from whetstone.rollout import GroupPlan
from whetstone.training import train
from whetstone.trajectory import EndReason

HERE = "support.failing_tools"
CAUSE = "support/failing_tools.py:16 (lookup_order): AttributeError: 'NoneType' object has no attribute 'cursor'"
SENTENCE = f"lookup_order failed in {{n}} of {{n}} calls: {CAUSE}"
REMEDY = "; repair the tool, no call of it succeeds"


def settings(tool, environment="tools"):
    return [
        f"tasks.source={HERE}:Orders",
        "tasks.kinds=null",
        f"environment.name={environment}",
        f"environment.tools=[{HERE}:{tool}]",
        "environment.max_turns=2",
        "ablations=null",
        "supervised=null",
    ]


def recipe(tool, *changes, environment="tools"):
    small = [change for change in SMALL if not change.startswith("supervised")]
    return load_recipe("demo", [*small, *settings(tool, environment), *changes])


@pytest.fixture(scope="module")
def failed_run(tmp_path_factory):
    """A finished run whose tool raises in every call, and the lines it printed."""
    progress, folder = Lines(), tmp_path_factory.mktemp("runs") / "run"
    letters = json.dumps([chr(code) for code in range(33, 127)])  # each of them ends a turn
    changes = (
        f"rollout.stop_strings={letters}",
        "rollout.max_new_tokens=40",
        "evaluation.temperature=1.0",
        "reinforcement.steps=4",
        "reinforcement.tasks_per_step=4",
    )
    train(recipe("lookup_order", *changes, environment=f"{HERE}:Calling"), folder, progress=progress)
    return folder, progress.lines


@pytest.mark.slow
def test_a_run_reports_it_after_five_calls_and_before_every_alarm(failed_run):
    _, lines = failed_run
    expected = SENTENCE.format(n=5) + REMEDY
    assert lines.count(expected) == 1
    first = lines.index(expected)
    assert not any("ALARM" in line or "easier" in line for line in lines[:first])
    nothing = next(line for line in lines if "no update changed the weights" in line)
    assert "no call of a tool succeeds" in nothing
    assert "easier" not in nothing
    alarm = next(line for line in lines if "ALARM" in line)
    assert re.search(r"failing tools: lookup_order failed in (\d+) of \1 calls of the last step", alarm)


@pytest.mark.slow
def test_the_metrics_count_every_call_of_a_run(failed_run):
    folder, _ = failed_run
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    calls = sum(row["tools/lookup_order/calls"] for row in rows)
    stored = [json.loads(line) for path in (folder / "trajectories").glob("step-*.jsonl")
              for line in path.read_text().splitlines()]  # fmt: skip
    assert calls == sum(len(turn["calls"]) for row in stored for turn in row["turns"]) > 0
    assert {row["tools/lookup_order/failed_fraction"] for row in rows} == {1.0}
    assert {row["tools/lookup_order/truncated_fraction"] for row in rows} == {0.0}


@pytest.mark.slow
def test_why_report_and_evaluation_name_it_first(failed_run):
    folder, _ = failed_run
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    line = SENTENCE.format(n=int(sum(row["tools/lookup_order/calls"] for row in rows))) + REMEDY
    printed = CliRunner().invoke(cli, ["why", str(folder)], catch_exceptions=False).output
    assert printed.startswith(line)
    printed_json = json.loads(CliRunner().invoke(cli, ["why", str(folder), "--json"], catch_exceptions=False).output)
    assert printed_json["failing_tools"] == [line]
    assert printed_json["tools"]["lookup_order"]["error"].startswith(
        "support/failing_tools.py:16 (lookup_order): AttributeError"
    )
    page = (folder / "report.html").read_text().replace("&#39;", "'")
    assert line in page
    assert "<h2>Tools</h2>" in page
    written = json.loads((folder / "evaluations" / "reinforcement.json").read_text())
    assert written["tools"]["lookup_order"]["failed"] == written["tools"]["lookup_order"]["calls"] > 0


def checks(tool):
    async def main():
        return {check.name: check async for check in run_preflight_checks(recipe(tool), check_seconds=600)}

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("lookup_order", SENTENCE.format(n=1)),
        (
            "unavailable_order",
            "unavailable_order failed in 1 of 1 calls: ConnectionRefusedError: shop.internal is down",
        ),
    ],
)
def test_doctor_is_not_ready_with_a_tool_that_fails_in_each_call(tool, expected):
    check = checks(tool)["tools and expert"]
    assert check.verdict is CheckStatus.FAIL
    assert check.said.startswith(expected)


@pytest.mark.slow
def test_doctor_is_undecided_if_its_example_arguments_may_be_the_cause():
    changes = [change for change in SMALL if not change.startswith("supervised")] + settings("strict_order")
    printed = CliRunner().invoke(cli, ["doctor", "demo", *changes, "tasks.source=support.failing_tools:WithoutExpert"])
    line = printed.output.splitlines()[-1]
    assert line.startswith("undecided: strict_order failed in 1 of 1 calls: support/failing_tools.py:")
    assert "(strict_order): KeyError: '1'" in line
    assert printed.exit_code == 0


def test_unavailable_backend_keeps_its_calls_in_the_record():
    assembly = assemble(recipe("unavailable_order", "environment.tool_attempts=1"))
    trajectory = asyncio.run(
        assembly.build_collector(assembly.expert_actor()).sample(GroupPlan(Orders().task(0), seed=0))
    )
    assert trajectory.ended is EndReason.INFRASTRUCTURE
    assert [(call.name, call.outcome) for call in trajectory.calls] == [("unavailable_order", "unavailable")]
    assert trajectory.error.startswith("unavailable_order: ConnectionRefusedError: shop.internal is down")
    assert trajectory.score is None
