"""A run with real tools: the sums of the demo, computed by Python in a sandbox, in several formats of calls."""

import asyncio

import pytest

from support.sandbox import needs_isolation
from support.small import SMALL
from whetstone.analysis import RunReplay
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress, read_trajectories
from whetstone.training import train

pytestmark = needs_isolation
QUIET = Progress(quiet=True)
PYTHON = "environment.tools=[{name: python, persistence: reset}]"
WIDE = "policy.tiny.context_length=512"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "python"
    recipe = load_recipe("demo", [*SMALL, PYTHON, WIDE, "ablations={}", "chat.format=code"])
    return run_dir, train(recipe, run_dir, progress=QUIET)


@pytest.mark.slow
def test_run_with_an_interpreter_trains_and_reports_the_lifetime_of_variables(finished):
    run_dir, summary = finished
    assert list(summary.evaluations) == ["untrained", "supervised", "reinforcement"]
    trajectories = [t for path in sorted((run_dir / "trajectories").glob("*.jsonl")) for t in read_trajectories(path)]
    assert trajectories
    assert {trajectory.declared for trajectory in trajectories} == {(("python", "reset"),)}


def test_demonstrations_are_computed_by_the_interpreter(tmp_path):
    recipe = load_recipe("demo", [*SMALL, PYTHON, WIDE, "ablations={}"])
    assembly = assemble(recipe)
    environment = assembly.environment()

    async def demonstrated():
        task = assembly.source.held_out(5)[-1]
        observation = await environment.reset(task, seed=0)
        messages = list(observation.messages)
        while True:
            action = assembly.demonstration_source.demonstrate(task, messages, observation.tools)
            result = await environment.step(action)
            if result.ended is not None:
                await environment.close()
                return action.text, task.private["answer"]
            messages += [action, *result.observation.messages]

    messages, answer = asyncio.run(demonstrated())
    assert messages == answer


def test_recorded_run_is_recomputed_without_its_interpreter(finished):
    async def replayed():
        return [each async for each in RunReplay(finished[0]).recompute_all()]

    compared = asyncio.run(replayed())
    assert sum(each.count for each in compared) > 0
    assert [each.what for each in compared if each.changed] == []


@pytest.mark.parametrize("strategy", ["random_branching", "entropy_branching"])
def test_trees_of_episodes_restore_the_interpreter_by_replaying_calls(tmp_path, strategy):
    changes = [PYTHON, WIDE, "ablations={}", f"rollout.strategy={strategy}", "rollout.group_size=4"]
    summary = train(load_recipe("demo", [*SMALL, *changes]), tmp_path / "run", progress=QUIET)
    assert summary.after.episodes == 4


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("[{name: python, persistance: reset}]", r"environment.tools.0.persistance: .*did you mean \"persistence\""),
        ("[{name: python, limits: {wall: 2}}]", r"environment.tools.0.limits.wall"),
        ("[{name: python, limits: {wall_seconds: -2}}]", "wall_seconds must be above 0"),
        (
            "[{name: calculator, digits: 3}]",
            r"environment.tools.0.digits: the function calculator has no parameter digits",
        ),
        ("[{name: calculator, expression: 3}]", r"environment.tools.0.expression: .*string"),
        ("[{name: pythn}]", 'did you mean "python"'),
        ("[5]", "a tool must be a name, or a mapping with `name`, got 5"),
        ("[python, {name: shell, persistence: reset}]", "must have the same `persistence`"),
    ],
)
def test_invalid_tools_are_refused_without_leaving_files(tmp_path, tools, message):
    with pytest.raises(RecipeError, match=message):
        train(load_recipe("demo", [*SMALL, f"environment.tools={tools}"]), tmp_path / "run", progress=QUIET)
    assert {path.name for path in tmp_path.glob("run/*")} <= {".lock"}
