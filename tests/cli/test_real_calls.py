"""No command calls a tool that writes without permission; real calls are counted before and after it is given."""

import io
import json
import re

import click
import pytest

from support import side_effects
from support.cli import whetstone
from support.side_effects import CALLS, OPENED
from support.small import SMALL
from whetstone.assembly.environment import build_environment, find_tool_effects
from whetstone.cli import main
from whetstone.environments import ENVIRONMENTS
from whetstone.recipe import built_in_methods, built_in_recipes, load_recipe
from whetstone.reporting import Progress
from whetstone.training import tool_effects, train
from whetstone.training.cost_estimate import count_episodes
from whetstone.training.permission import expect_calls

DEMO = ["demo", *SMALL, "ablations={}", "evaluation.episodes=2"]
QUIET = Progress(quiet=True)


SAYS_YES = "{name: scripted, answers: 'support.judges:says_yes'}"


def tool(name):
    return f"environment.tools=[support.side_effects:{name}]"


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()
    OPENED.clear()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that was permitted to call a tool that writes."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    train(load_recipe(DEMO[0], [*DEMO[1:], tool("writing"), "environment.allow_effects=true"]), run_dir, progress=QUIET)
    return run_dir


RUNS = {
    "train": ["train", *DEMO],
    "evaluate": ["evaluate", *DEMO],
    "rollout": ["rollout", *DEMO, "--expert"],
    "compare": ["compare", *DEMO, "advantage=group_relative,rloo", "--seeds", "1"],
    "live": ["live", *DEMO, "live.guard={interval_updates: 1}", "--port", "0"],
}
"""Commands that play episodes of a recipe. They call tools of unknown effect."""
CHECKS = {
    "doctor": ["doctor", *DEMO],
    "rewards audit": ["rewards", "audit", *DEMO, "--tasks", "1"],
    "rewards write": ["rewards", "write", *DEMO, "--tasks", "1", "--judge", SAYS_YES, "-o", "none/reward.py"],
    "rewards train-model": ["rewards", "train-model", *DEMO, "--tasks", "5", "--model", "none"],
    "environments check": ["environments", "check", "tools", "--tasks", "arithmetic", "--episodes", "1"],
    "environments export": [
        "environments",
        "export",
        "tools",
        "--tasks",
        "arithmetic",
        "--num-tasks",
        "1",
        "--to",
        "openenv",
        "-o",
        "out",
    ],
    "tasks explore": ["tasks", "explore", *DEMO, "--starts", "1", "--episodes", "1", "--output-file", "x.jsonl"],
    "tasks difficulty": ["tasks", "difficulty", *DEMO, "--tasks", "1", "--episodes", "2", "--max-turns", "2"],
}
"""Commands that try a recipe. They call tools of unknown effect with `--call-tools`."""
OTHERS = {"chat", "data inject-errors", "environments serve", "mcp", "plan", "replay"}
"""Other commands that create an environment, or that could."""
WITHOUT_TOOLS = {
    "bisect",
    "compare-logs", "completion", "data check", "data export", "data import", "data score",
    "export", "import", "models add", "new", "papers",
    "push", "recipes show", "rewards list", "rewards metrics", "rewards rules", "serve", "show",
    "tasks score", "tasks show", "view", "why",
}  # fmt: skip
"""Commands that play no episode."""


def typed(words, name):
    """Return the words of a command with this tool."""
    return [*words, tool(name).removeprefix("environment.") if words[0] == "environments" else tool(name)]


def leaves(command, name):
    if not isinstance(command, click.Group):
        return {name}
    return {leaf for each, below in command.commands.items() for leaf in leaves(below, f"{name} {each}")}


def test_every_command_is_listed_here():
    group = main._Commands()
    commands = {leaf for name in main.COMMANDS for leaf in leaves(group.get_command(click.Context(group), name), name)}
    assert commands == {*RUNS, *CHECKS, *OTHERS, *WITHOUT_TOOLS}


@pytest.mark.parametrize("name", ["writing", "destroying"])
@pytest.mark.parametrize("command", RUNS)
def test_a_run_without_permission_is_refused_before_it_starts(command, name, tmp_path):
    done = whetstone(*typed(RUNS[command], name), cwd=tmp_path)
    assert done.returncode == 2
    assert CALLS == []
    line = done.stderr.strip().splitlines()[-1]
    assert "environment.allow_effects: real calls of pocket_calculator are not permitted" in line
    assert "--allow-effects" in line
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize("name", ["writing", "destroying", "undeclared"])
@pytest.mark.parametrize("command", CHECKS)
def test_a_check_calls_no_tool_that_does_not_declare_that_it_reads(command, name, tmp_path):
    done = whetstone(*typed(CHECKS[command], name), cwd=tmp_path)
    assert CALLS == []
    printed = " ".join((done.stdout + done.stderr).split())
    effect = {"writing": "write", "destroying": "destructive", "undeclared": "unknown effect"}[name]
    assert f"not called: pocket_calculator ({effect})" in printed
    assert ("--call-tools" if name == "undeclared" else "permit pocket_calculator with --allow-effects") in printed


@pytest.mark.parametrize("command", ["doctor", "rewards audit", "environments check"])
def test_a_permission_in_the_recipe_is_for_runs_and_not_for_checks(command, tmp_path):
    if command == "environments check":
        pytest.skip("it reads no recipe")
    whetstone(*typed(CHECKS[command], "writing"), "environment.allow_effects=true", cwd=tmp_path)
    assert CALLS == []


@pytest.mark.parametrize(("name", "option"), [("writing", "--allow-effects"), ("undeclared", "--call-tools")])
@pytest.mark.parametrize("command", ["doctor", "rewards audit", "environments check"])
def test_a_check_with_permission_calls(command, name, option, tmp_path):
    whetstone(*typed(CHECKS[command], name), option, cwd=tmp_path)
    assert CALLS
    assert set(CALLS) == {getattr(getattr(side_effects, name), "effects", None)}


def test_call_tools_does_not_permit_effects(tmp_path):
    whetstone(*typed(CHECKS["doctor"], "writing"), "--call-tools", cwd=tmp_path)
    assert CALLS == []


@pytest.mark.parametrize("permission", ["--allow-effects", "environment.allow_effects=[pocket_calculator]"])
def test_a_run_with_permission_calls_and_prints_how_often(permission, tmp_path):
    done = whetstone(*typed(RUNS["rollout"], "writing"), permission, "-n", "2", cwd=tmp_path)
    assert done.returncode == 0
    expected = re.search(
        r"real calls: (\d+) of pocket_calculator \(write\): 2 episodes × \d+ turns × 1 call", done.stderr
    )
    assert 0 < len(CALLS) <= int(expected[1])


def test_a_run_with_an_unknown_tool_continues_and_prints_one_line(tmp_path):
    done = whetstone(*typed(RUNS["rollout"], "undeclared"), cwd=tmp_path)
    assert done.returncode == 0
    assert set(CALLS) == {None}
    (line,) = [line for line in done.stderr.splitlines() if "real calls" in line]
    assert "environment.effects: {pocket_calculator: read}" in line


@pytest.mark.parametrize("declared", [tool("reading"), "environment.tools=[pocket_calculator]"])
def test_a_run_whose_tools_only_read_prints_nothing(declared, tmp_path):
    done = whetstone("rollout", *DEMO, declared, "--expert", cwd=tmp_path)
    assert done.returncode == 0
    assert "calls" not in done.stderr


def test_a_recipe_declares_effects_of_its_tools(tmp_path):
    words = [*typed(RUNS["rollout"], "writing"), "environment.effects={pocket_calculator: read}"]
    done = whetstone(*words, cwd=tmp_path)
    assert (done.returncode, set(CALLS)) == (0, {"write"})
    assert "real calls" not in done.stderr


@pytest.mark.parametrize("key", ["effects={pocket_calculater: read}", "allow_effects=[pocket_calculater]"])
def test_unknown_tool_is_named(key, tmp_path):
    done = whetstone(*RUNS["rollout"], f"environment.{key}", cwd=tmp_path)
    assert done.returncode == 2
    assert 'there is no tool "pocket_calculater"; did you mean "pocket_calculator"' in done.stderr


@pytest.mark.parametrize(("answer", "calls"), [("y\n", True), ("n\n", False)])
def test_user_is_asked_once(answer, calls, tmp_path, monkeypatch):
    monkeypatch.setattr("whetstone.cli.effects.is_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    run_dir = tmp_path / "run"
    done = whetstone(*typed(RUNS["train"], "destroying"), "--plain", "--run-dir", run_dir, cwd=tmp_path)
    assert (done.stdout + done.stderr).count("Call pocket_calculator for real?") == 1
    assert (done.returncode == 0, bool(CALLS)) == (calls, calls)
    if calls:  # the answer is stored with the run, which is resumed without a question
        monkeypatch.undo()
        (run_dir / "summary.json").unlink()
        (run_dir / "evaluations" / "reinforcement.json").unlink()
        resumed = whetstone(*typed(RUNS["train"], "destroying"), "--run-dir", run_dir, "--resume", cwd=tmp_path)
        assert resumed.returncode == 0, resumed.stderr


@pytest.mark.parametrize("words", [["evaluate"], ["rollout"], ["chat"], ["live"]])
def test_permission_of_a_run_can_be_revoked(words, finished, tmp_path):
    guard = ["live.guard={interval_updates: 1}", "--port", "0"] if words == ["live"] else []
    done = whetstone(*words, finished, "environment.allow_effects=false", *guard, cwd=tmp_path)
    assert (done.returncode, CALLS) == (2, [])
    assert "environment.allow_effects: real calls of pocket_calculator are not permitted" in done.stderr


def test_an_environment_is_not_served_without_permission(tmp_path):
    words = [
        "environments",
        "serve",
        "tools",
        "--tasks",
        "arithmetic",
        "tools=[support.side_effects:writing]",
        "--port",
        "0",
    ]
    done = whetstone(*words, cwd=tmp_path)
    assert (done.returncode, CALLS) == (2, [])
    assert "tools: not served: pocket_calculator (write); permit pocket_calculator with --allow-effects" in done.stderr


@pytest.mark.slow
def test_a_comparison_asks_for_its_missing_runs_only(tmp_path):
    words = typed(RUNS["compare"], "writing")
    assert whetstone(*words, "--allow-effects", cwd=tmp_path).returncode == 0
    assert set(CALLS) == {"write"}
    CALLS.clear()
    assert whetstone(*words, cwd=tmp_path).returncode == 0
    assert CALLS == []


def test_commands_on_a_finished_run_call_nothing(finished, tmp_path):
    for words in (["replay", finished], ["show", finished], ["why", finished], ["plan", finished / "recipe.yaml"]):
        whetstone(*words, cwd=tmp_path)
    assert CALLS == []


def test_calls_are_estimated_from_the_evaluation_of_a_run(finished):
    resolved = load_recipe(DEMO[0], [*DEMO[1:], tool("writing")])
    assert expect_calls([(resolved, lambda _: 10)], finished, print).count == {"pocket_calculator": 0}
    assert expect_calls([(resolved, lambda _: 10)], None, print).count == {
        "pocket_calculator": 10 * resolved.recipe.environment.max_turns
    }


def test_the_expected_number_of_episodes_is_that_of_the_run(tmp_path):
    # 2 evaluated tasks × (untrained, supervised, reinforcement) + 2 × 4 demonstrations + 2 steps × 2 tasks × 2 samples
    resolved = load_recipe(DEMO[0], [*DEMO[1:], "environment.tools=[pocket_calculator, support.side_effects:Opened]"])
    assert count_episodes(resolved) == 2 * 3 + 2 * 4 + 2 * 2 * 2
    train(resolved, tmp_path / "run", progress=QUIET)
    assert len(OPENED) == count_episodes(resolved)


@pytest.mark.parametrize("name", [*built_in_recipes(), *built_in_methods()])
def test_tools_of_every_recipe_of_the_package_only_read(name, request):
    changes = []
    if load_recipe(name).recipe.tasks.source == "gsm8k":
        changes = [f"tasks.path={request.getfixturevalue('gsm8k_folder')}"]
    resolved = load_recipe(name, changes)
    for need in getattr(ENVIRONMENTS.get(resolved.recipe.environment.name), "needs", ()):
        if not need.is_installed:
            pytest.skip(f"{need.name} is not installed: {need.command}")
    environment = build_environment(resolved)()
    assert set(find_tool_effects(environment, resolved.recipe.environment).values()) <= {"read"}
    assert set(tool_effects(resolved).values()) <= {"read"}


def test_an_agent_is_not_started_by_a_check_that_is_not_permitted(tmp_path):
    agent = ['environment={name: agent, function: "support.side_effects:agent"}', "supervised=null"]
    done = whetstone("doctor", *DEMO, *agent, "--json", cwd=tmp_path)
    checks = {check["name"]: check["said"] for check in json.loads(done.stdout)["checks"]}
    assert checks["episodes"] == "not tried: the environment agent is not played"
    assert CALLS == []
