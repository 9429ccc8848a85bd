"""The Python interface: import costs, recipes in code, functions instead of names, runs and their results."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import whetstone
from support.small import SMALL, StopAfter, Stopped, parity
from whetstone.algorithms import PerTrajectory
from whetstone.errors import RecipeError, RunDirectoryError
from whetstone.plugins import get_component_name
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.trajectory import Score

SOURCE = Path(whetstone.__file__).parent
PROTOCOLS = sorted(
    ".".join(("whetstone", *path.relative_to(SOURCE).with_suffix("").parts)) for path in SOURCE.rglob("protocol.py")
)
QUIET = Progress(quiet=True)
TINY = {
    "policy": {
        "tiny": {"vocab_size": 300, "hidden_size": 16, "num_heads": 2, "num_layers": 1, "intermediate_size": 16}
    },
    "chat": {"format": "compact"},
    "tasks": {"source": "arithmetic"},
    "rollout": {"group_size": 2, "max_new_tokens": 6},
    "reinforcement": {"steps": 2, "tasks_per_step": 2, "checkpoint_interval_steps": 1},
    "evaluation": {"episodes": 4},
}


def in_new_process(*arguments):
    """Return the result of code in a new Python, with this Whetstone and the modules of the tests."""
    search_path = os.pathsep.join([str(SOURCE.parent), str(Path(__file__).parent)])
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=90,
        env={**os.environ, "PYTHONPATH": search_path},
    )  # fmt: skip


@pytest.mark.parametrize("loads", ["import whetstone", *(f"import {name}" for name in PROTOCOLS), "--help"])
def test_reading_attributes_imports_no_torch_and_few_modules(loads):
    if loads == "--help":
        loads = "import sys; sys.argv = ['whetstone', '--help']\nfrom whetstone.cli.main import cli\n"
        loads += "try:\n cli()\nexcept SystemExit: pass"
    counted = "import sys; print('torch' in sys.modules, sum(m.split('.')[0] == 'whetstone' for m in sys.modules))"
    torch, modules = in_new_process("-c", f"{loads}\n{counted}").stdout.splitlines()[-1].split()
    assert torch == "False"
    assert int(modules) <= 32


def test_package_exports_existing_names():
    functions = {"train", "load_recipe", "evaluate", "episode"}
    offered = functions | {"InfrastructureError", "Recipe", "Score", "Task", "ToolError", "Trajectory"}
    assert offered == set(whetstone.__all__)
    assert all(callable(getattr(whetstone, name)) for name in whetstone.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        whetstone.trian  # noqa: B018


def shout(text: str) -> str:
    """Say it louder.

    Args:
        text: What.
    """
    return text.upper()


def above_half(rewards: PerTrajectory) -> PerTrajectory:
    """Rewards above a half are good."""
    return rewards - 0.5


def test_functions_and_classes_of_modules_are_stored_by_name():
    resolved = load_recipe({**TINY, "reward": parity, "advantage": above_half, "environment": {"tools": (shout, str)}})
    assert resolved.recipe.reward.name == "support.small:parity"
    assert resolved.recipe.advantage.name == get_component_name(above_half)
    assert resolved.recipe.environment.options["tools"][1] == "builtins:str"


def test_local_function_has_one_name_while_it_is_the_same():
    def local(rewards):
        return rewards

    def another():
        def local(rewards):
            return -rewards

        return local

    assert get_component_name(local) == get_component_name(local)
    assert get_component_name(local) != get_component_name(another())
    assert get_component_name(lambda: 0).startswith("given-")


def test_recipe_is_keys_an_object_or_a_file_with_overrides(tmp_path):
    keys = {**TINY, "reward": parity}
    (tmp_path / "mine.yaml").write_text(load_recipe(keys).dump())
    built = whetstone.Recipe(**keys)
    loaded = [load_recipe(recipe).recipe for recipe in (keys, built, load_recipe(keys), tmp_path / "mine.yaml")]
    assert all(recipe == loaded[0] for recipe in loaded)
    changed = load_recipe(
        tmp_path / "mine.yaml", ["reinforcement.tasks_per_step=3"], reinforcement={"steps": 5}, seed=7
    ).recipe
    assert (changed.seed, changed.reinforcement.steps, changed.reinforcement.tasks_per_step) == (7, 5, 3)
    assert changed.reinforcement.checkpoint_interval_steps == 1
    extended = load_recipe({"extends": str(tmp_path / "mine.yaml"), "advantage": above_half}).recipe
    assert extended.advantage.name == get_component_name(above_half)
    assert extended.tasks == loaded[0].tasks


def test_section_of_none_is_removed():
    assert load_recipe("demo", supervised=None).recipe.supervised is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: load_recipe({**TINY, "reward": parity, "advantge": above_half}), 'did you mean "advantage"?'),
        (
            lambda: load_recipe("demo", reinforcement={"stpes": 3}),
            'reinforcement.stpes: no such key; did you mean "steps"?',
        ),
        (lambda: load_recipe("demo").with_changes(reinforcement={"stpes": 3}), 'did you mean "steps"?'),
        (lambda: whetstone.Recipe(**TINY, reward=parity, sed=1), 'sed: no such key; did you mean "seed"?'),
        (lambda: load_recipe("demo", seed=lambda: 0), "seed: "),
        (lambda: whetstone.Recipe(), "policy: is required"),
    ],
)
def test_mistake_in_keys_is_one_line(make, message):
    with pytest.raises(RecipeError) as raised:
        make()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_overrides_can_be_functions():
    changed = load_recipe("demo").with_changes({"advantage": above_half, "reinforcement.steps": 3})
    assert changed.recipe.advantage.name == get_component_name(above_half)
    assert changed.recipe.reinforcement.steps == 3
    assert load_recipe("demo").with_changes(advantage=above_half, reinforcement={"steps": 3}).recipe == changed.recipe


@pytest.fixture(scope="module")
def lambdas(tmp_path_factory):
    """Return (recipe of local functions, a run of it, the calls of each function)."""
    seen = {"advantage": 0, "reward": 0, "rows": []}

    def local_reward(rewards: PerTrajectory) -> PerTrajectory:
        seen["advantage"] += 1
        return rewards - 0.5

    async def paid(trajectory, task):
        seen["reward"] += 1
        return await parity(trajectory, task)

    def shouted(text: str) -> str:
        """Say it louder."""
        return text.upper()

    recipe = whetstone.load_recipe({**TINY, "reward": paid, "environment": {"tools": [shouted]}}).with_changes(
        {"advantage": local_reward}
    )
    run = whetstone.train(
        recipe, tmp_path_factory.mktemp("runs") / "mine", on_metrics=seen["rows"].append, progress=QUIET
    )
    return recipe, run, seen


def test_local_functions_are_used_in_training(lambdas):
    _, run, seen = lambdas
    assert seen["advantage"] >= 2
    assert seen["reward"] >= 2 * 2 * 2 + 4
    assert [row["step"] for row in seen["rows"]] == [1, 2]
    written = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["reward/mean"] for row in written] == [row["reward/mean"] for row in seen["rows"]]


def test_summary_is_the_content_of_its_file_and_frozen(lambdas):
    _, run, _ = lambdas
    assert run.written == json.loads((run.run_dir / "summary.json").read_text())
    assert list(run.evaluations) == ["untrained", "reinforcement"]
    assert run.before is run.evaluations["untrained"]
    assert run.after.to_json() == run.written["evaluations"]["reinforcement"]
    assert run.policy().parameters == run.parameters
    with pytest.raises(FrozenInstanceError):
        run.seed = 1


def test_a_damaged_summary_is_one_line(lambdas, tmp_path):
    _, run, _ = lambdas
    summary = type(run)
    for text in ("[]", "{}", json.dumps({**run.written, "evaluations": {"untrained": {"episodes": "many"}}})):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(RunDirectoryError, match=r"summary\.json: is damaged") as raised:
            summary.read(tmp_path)
        assert "\n" not in str(raised.value)


def test_run_is_evaluated_with_its_own_settings(lambdas):
    _, run, _ = lambdas
    repeated = whetstone.evaluate(run, progress=QUIET)
    assert repeated.to_json() == run.after.to_json()
    assert whetstone.evaluate(run.run_dir, episodes=2, progress=QUIET).episodes == 2


@pytest.fixture
def stopped(tmp_path):
    """Return (the recipe of a local function, a stopped run of it)."""

    def local_reward(rewards: PerTrajectory) -> PerTrajectory:
        return rewards - 0.5

    recipe = load_recipe({**TINY, "reward": parity, "advantage": local_reward})
    with pytest.raises(Stopped):
        whetstone.train(recipe, tmp_path / "run", progress=StopAfter(1))
    return recipe, tmp_path / "run"


def test_run_of_local_functions_resumes_in_its_process(stopped):
    recipe, run = stopped
    assert whetstone.train(recipe, run, resume=True, progress=QUIET).after.episodes == 4


def test_run_of_local_functions_is_refused_with_other_functions(stopped):
    _, run = stopped
    recipe = load_recipe(run / "recipe.yaml", advantage=lambda rewards: rewards)
    with pytest.raises(RunDirectoryError, match=r"holds a run of another recipe: advantage\.name is "):
        whetstone.train(recipe, run, resume=True, progress=QUIET)


@pytest.mark.slow
def test_a_run_of_local_functions_is_refused_in_another_process(stopped):
    recipe, run = stopped
    elsewhere = f"""
import whetstone
from whetstone.errors import RunDirectoryError
folder = {str(run)!r}
recipe = whetstone.load_recipe(folder + "/recipe.yaml", advantage=lambda rewards: rewards)
try:
    whetstone.train(recipe, folder, resume=True)
except RunDirectoryError as refused:
    print(refused)
"""
    done = in_new_process("-c", elsewhere)
    assert (
        "cannot be resumed: advantage.name is a function of an earlier process that is in no module" in done.stdout
    ), done.stderr
    refused = in_new_process("-m", "whetstone.cli.main", "train", run / "recipe.yaml", "--run-dir", run, "--resume")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[:-1] == ["whetstone: loading PyTorch"]
    assert "define it at the top of a module" in refused.stderr
    assert whetstone.train(recipe, run, resume=True, progress=QUIET).after.episodes == 4


def test_training_and_evaluation_work_inside_a_running_event_loop(tmp_path):
    async def notebook():
        run = whetstone.train({**TINY, "reward": parity}, tmp_path / "inside", progress=QUIET)
        return run, whetstone.evaluate(run, progress=QUIET)

    run, evaluated = asyncio.run(notebook())
    assert evaluated.to_json() == run.after.to_json()
    outside = whetstone.train({**TINY, "reward": parity}, tmp_path / "outside", progress=QUIET)
    parameters, expected = (dict(each.policy().model.named_parameters()) for each in (run, outside))
    assert all(value.equal(expected[name]) for name, value in parameters.items())


def test_errors_reach_the_caller_in_a_running_event_loop(tmp_path):
    async def notebook():
        return whetstone.train({**TINY, "reward": "no_such_reward"}, tmp_path / "run", progress=QUIET)

    with pytest.raises(RecipeError, match="no_such_reward"):
        asyncio.run(notebook())


@pytest.mark.slow
def test_ctrl_c_in_a_notebook_saves_the_run(tmp_path):
    script = f"""
import asyncio, _thread, sys, whetstone
from whetstone.training import Interrupted
from support.small import parity
from test_python import TINY
async def notebook():
    recipe = whetstone.load_recipe({{**TINY, "reward": parity}}, reinforcement={{"steps": 10_000}})
    def pressed(row):
        if row["step"] == 2:
            _thread.interrupt_main()
    try:
        whetstone.train(recipe, {str(tmp_path / "run")!r}, on_metrics=pressed)
    except Interrupted as stop:
        print(stop)
asyncio.run(notebook())
"""
    done = in_new_process("-c", script)
    assert "is saved" in done.stdout, done.stderr
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.slow
def test_script_is_a_module_with_its_own_name(tmp_path):
    (tmp_path / "own_script.py").write_text(
        "import whetstone\nfrom whetstone.algorithms import PerTrajectory\nprint('ran')\n"
        "def mine(rewards: PerTrajectory) -> PerTrajectory:\n    return rewards - 0.5\n"
        "if __name__ == '__main__':\n"
        "    recipe = whetstone.load_recipe('demo', advantage=mine)\n"
        "    print(recipe.recipe.advantage.name)\n"
        "    from whetstone.plugins import find_part, get_search_paths\n"
        "    print(find_part('advantage', recipe.recipe.advantage.name, {}) is mine, get_search_paths())\n"
    )
    done = in_new_process(tmp_path / "own_script.py")
    ran, name, result = done.stdout.splitlines()
    assert (ran, name) == ("ran", "own_script:mine")
    assert result.startswith("True") and str(tmp_path) in result  # noqa: PT018


def test_evaluation_of_a_recipe_is_frozen_and_refuses_in_one_line():
    came_to = whetstone.evaluate("demo", [*SMALL, "ablations=null"], episodes=3, progress=QUIET)
    assert came_to.episodes == 3
    with pytest.raises(FrozenInstanceError):
        came_to.success = 1.0
    with pytest.raises(RecipeError, match="neither a run nor a recipe"):
        whetstone.evaluate("runs/never-made")


async def generous(trajectory: whetstone.Trajectory, task: whetstone.Task) -> Score:
    """Score 1 for every trajectory, with the exported types."""
    return whetstone.Score(1.0)


def test_functions_can_be_options():
    """Use a function as the reward of a term."""
    recipe = load_recipe({**TINY, "reward": {"name": "composed", "terms": {"all": {"name": generous, "weight": 0.5}}}})
    assert recipe.recipe.reward.options["terms"]["all"]["name"] == get_component_name(generous)
