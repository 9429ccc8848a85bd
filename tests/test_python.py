"""Whetstone from Python: what importing costs, recipes in code, functions in place of names, runs and their results."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import whetstone
from tests_small import SMALL, StopAfter, Stopped, parity
from whetstone.algorithms import PerTrajectory
from whetstone.errors import RecipeError, RunDirectoryError
from whetstone.plugins import name_of
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


def in_python(*arguments):
    """What a Python of its own came to, with this Whetstone and the modules beside the tests."""
    found = os.pathsep.join([str(SOURCE.parent), str(Path(__file__).parent)])
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=90,
        env={**os.environ, "PYTHONPATH": found},
    )  # fmt: skip


@pytest.mark.parametrize("loads", ["import whetstone", *(f"import {name}" for name in PROTOCOLS), "--help"])
def test_what_is_only_looked_at_loads_no_torch_and_few_modules(loads):
    if loads == "--help":
        loads = "import sys; sys.argv = ['whetstone', '--help']\nfrom whetstone.cli.main import cli\n"
        loads += "try:\n cli()\nexcept SystemExit: pass"
    counted = "import sys; print('torch' in sys.modules, sum(m.split('.')[0] == 'whetstone' for m in sys.modules))"
    torch, modules = in_python("-c", f"{loads}\n{counted}").stdout.splitlines()[-1].split()
    assert torch == "False"
    assert int(modules) <= 32


def test_the_window_offers_what_it_names():
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


def test_functions_and_classes_of_modules_are_written_by_their_names():
    given = load_recipe({**TINY, "reward": parity, "advantage": above_half, "environment": {"tools": (shout, str)}})
    assert given.recipe.reward.name == "tests_small:parity"
    assert given.recipe.advantage.name == name_of(above_half)
    assert given.recipe.environment.options["tools"][1] == "builtins:str"


def test_what_is_in_no_module_has_one_name_as_long_as_it_is_the_same():
    def mine(rewards):
        return rewards

    def another():
        def mine(rewards):
            return -rewards

        return mine

    assert name_of(mine) == name_of(mine)
    assert name_of(mine) != name_of(another())
    assert name_of(lambda: 0).startswith("given-")


def test_a_recipe_is_keys_an_object_or_a_file_with_sections_over_it(tmp_path):
    keys = {**TINY, "reward": parity}
    (tmp_path / "mine.yaml").write_text(load_recipe(keys).dump())
    built = whetstone.Recipe(**keys)
    loaded = [load_recipe(given).recipe for given in (keys, built, load_recipe(keys), tmp_path / "mine.yaml")]
    assert all(recipe == loaded[0] for recipe in loaded)
    changed = load_recipe(
        tmp_path / "mine.yaml", ["reinforcement.tasks_per_step=3"], reinforcement={"steps": 5}, seed=7
    ).recipe
    assert (changed.seed, changed.reinforcement.steps, changed.reinforcement.tasks_per_step) == (7, 5, 3)
    assert changed.reinforcement.checkpoint_interval_steps == 1
    extended = load_recipe({"extends": str(tmp_path / "mine.yaml"), "advantage": above_half}).recipe
    assert extended.advantage.name == name_of(above_half)
    assert extended.tasks == loaded[0].tasks


def test_a_section_that_is_none_is_taken_out():
    assert load_recipe("demo", supervised=None).recipe.supervised is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: load_recipe({**TINY, "reward": parity, "advantge": above_half}), 'did you mean "advantage"?'),
        (
            lambda: load_recipe("demo", reinforcement={"stpes": 3}),
            'reinforcement.stpes: no such key; did you mean "steps"?',
        ),
        (lambda: load_recipe("demo").with_changes(reinforcement={"stpes": 3}), 'did you mean "steps"?'),
        (lambda: whetstone.Recipe(**TINY, reward=parity, sed=1), 'sed: no such key; did you mean "seed"?'),
        (lambda: load_recipe("demo", seed=lambda: 0), "seed: "),
        (lambda: whetstone.Recipe(), "policy: is needed and not set"),
    ],
)
def test_a_mistake_in_keys_is_one_line(make, said):
    with pytest.raises(RecipeError) as raised:
        make()
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_changes_take_functions():
    changed = load_recipe("demo").with_changes({"advantage": above_half, "reinforcement.steps": 3})
    assert changed.recipe.advantage.name == name_of(above_half)
    assert changed.recipe.reinforcement.steps == 3
    assert load_recipe("demo").with_changes(advantage=above_half, reinforcement={"steps": 3}).recipe == changed.recipe


@pytest.fixture(scope="module")
def lambdas(tmp_path_factory):
    """(recipe of local functions, a run of it, what each was called with)"""
    seen = {"advantage": 0, "reward": 0, "rows": []}

    def mine(rewards: PerTrajectory) -> PerTrajectory:
        seen["advantage"] += 1
        return rewards - 0.5

    async def paid(trajectory, task):
        seen["reward"] += 1
        return await parity(trajectory, task)

    def shouted(text: str) -> str:
        """Say it louder."""
        return text.upper()

    recipe = whetstone.load_recipe({**TINY, "reward": paid, "environment": {"tools": [shouted]}}).with_changes(
        {"advantage": mine}
    )
    run = whetstone.train(
        recipe, tmp_path_factory.mktemp("runs") / "mine", on_metrics=seen["rows"].append, progress=QUIET
    )
    return recipe, run, seen


def test_local_functions_are_trained_with(lambdas):
    _, run, seen = lambdas
    assert seen["advantage"] >= 2
    assert seen["reward"] >= 2 * 2 * 2 + 4
    assert [row["step"] for row in seen["rows"]] == [1, 2]
    written = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["reward/mean"] for row in written] == [row["reward/mean"] for row in seen["rows"]]


def test_a_summary_is_what_the_file_holds_and_is_frozen(lambdas):
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


def test_a_run_is_evaluated_where_it_was_made(lambdas):
    _, run, _ = lambdas
    again = whetstone.evaluate(run, progress=QUIET)
    assert again.to_json() == run.after.to_json()
    assert whetstone.evaluate(run.run_dir, episodes=2, progress=QUIET).episodes == 2


@pytest.fixture
def stopped(tmp_path):
    """(the recipe of a local function, a run of it that was stopped)"""

    def mine(rewards: PerTrajectory) -> PerTrajectory:
        return rewards - 0.5

    recipe = load_recipe({**TINY, "reward": parity, "advantage": mine})
    with pytest.raises(Stopped):
        whetstone.train(recipe, tmp_path / "run", progress=StopAfter(1))
    return recipe, tmp_path / "run"


def test_a_run_of_local_functions_goes_on_in_its_own_process(stopped):
    recipe, run = stopped
    assert whetstone.train(recipe, run, resume=True, progress=QUIET).after.episodes == 4


def test_a_run_of_local_functions_is_refused_where_they_are_others(stopped):
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
    done = in_python("-c", elsewhere)
    assert "cannot be gone on with: advantage.name was given as a function that is in no module" in done.stdout, (
        done.stderr
    )
    refused = in_python("-m", "whetstone.cli.main", "train", run / "recipe.yaml", "--run-dir", run, "--resume")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[:-1] == ["whetstone: loading PyTorch"]
    assert "define it at the top of a module" in refused.stderr
    assert whetstone.train(recipe, run, resume=True, progress=QUIET).after.episodes == 4


def test_training_and_evaluating_work_where_a_loop_is_running(tmp_path):
    async def notebook():
        run = whetstone.train({**TINY, "reward": parity}, tmp_path / "inside", progress=QUIET)
        return run, whetstone.evaluate(run, progress=QUIET)

    run, again = asyncio.run(notebook())
    assert again.to_json() == run.after.to_json()
    outside = whetstone.train({**TINY, "reward": parity}, tmp_path / "outside", progress=QUIET)
    theirs, ours = (dict(each.policy().model.named_parameters()) for each in (run, outside))
    assert all(value.equal(ours[name]) for name, value in theirs.items())


def test_errors_reach_whoever_called_from_a_running_loop(tmp_path):
    async def notebook():
        return whetstone.train({**TINY, "reward": "no_such_reward"}, tmp_path / "run", progress=QUIET)

    with pytest.raises(RecipeError, match="no_such_reward"):
        asyncio.run(notebook())


@pytest.mark.slow
def test_ctrl_c_in_a_notebook_saves_the_run(tmp_path):
    script = f"""
import asyncio, _thread, sys, whetstone
from whetstone.training import Interrupted
from tests_small import parity
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
    done = in_python("-c", script)
    assert "is saved" in done.stdout, done.stderr
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.slow
def test_a_script_is_a_module_by_its_own_name(tmp_path):
    (tmp_path / "own_script.py").write_text(
        "import whetstone\nfrom whetstone.algorithms import PerTrajectory\nprint('ran')\n"
        "def mine(rewards: PerTrajectory) -> PerTrajectory:\n    return rewards - 0.5\n"
        "if __name__ == '__main__':\n"
        "    recipe = whetstone.load_recipe('demo', advantage=mine)\n"
        "    print(recipe.recipe.advantage.name)\n"
        "    from whetstone.plugins import find_part, searched\n"
        "    print(find_part('advantage', recipe.recipe.advantage.name, {}) is mine, searched())\n"
    )
    done = in_python(tmp_path / "own_script.py")
    ran, name, found = done.stdout.splitlines()
    assert (ran, name) == ("ran", "own_script:mine")
    assert found.startswith("True") and str(tmp_path) in found  # noqa: PT018


def test_an_evaluation_of_a_recipe_is_frozen_and_refuses_in_a_line():
    came_to = whetstone.evaluate("demo", [*SMALL, "ablations=null"], episodes=3, progress=QUIET)
    assert came_to.episodes == 3
    with pytest.raises(FrozenInstanceError):
        came_to.success = 1.0
    with pytest.raises(RecipeError, match="neither a run nor a recipe"):
        whetstone.evaluate("runs/never-made")


async def generous(trajectory: whetstone.Trajectory, task: whetstone.Task) -> Score:
    """One for all, by the types of the window."""
    return whetstone.Score(1.0)


def test_functions_stand_below_options_too():
    """A term of a sum is a reward as well."""
    recipe = load_recipe({**TINY, "reward": {"name": "composed", "terms": {"all": {"name": generous, "weight": 0.5}}}})
    assert recipe.recipe.reward.options["terms"]["all"]["name"] == name_of(generous)
