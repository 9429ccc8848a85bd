"""A new run starts from a checkpoint of another one."""

import pytest
import torch

from support.cli import whetstone
from support.small import SMALL
from whetstone.errors import RecipeError
from whetstone.policies import load_policy
from whetstone.recipe import load_recipe
from whetstone.record import checkpoint_path, load_checkpoint, run_recipe
from whetstone.reporting import Progress
from whetstone.training import train

OVERRIDES = [
    *(key for key in SMALL if not key.startswith("supervised.")),
    "supervised=null",
    "ablations=null",
    "evaluation.episodes=2",
    "reward=support.small:alternating",
    "reinforcement.checkpoint_interval_steps=1",
    "reinforcement.keep_last=9",
]


def small(*overrides):
    return load_recipe("demo", [*OVERRIDES, *overrides])


def quiet():
    return Progress(quiet=True)


def weights(path):
    return load_policy(path).model.state_dict()


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    run = tmp_path_factory.mktemp("start") / "run"
    train(small("reinforcement.steps=3"), run, progress=quiet())
    return run


def first_update(run):
    return load_checkpoint(checkpoint_path(run, 1))


@pytest.mark.parametrize("step", [1, None])
def test_a_run_starts_with_the_weights_of_a_checkpoint(source, tmp_path, step):
    named = str(source) if step is None else f"{source}@{step}"
    # a learning rate that moves nothing: the weights after the update are those before it
    train(
        small(f"start_from={named}", "reinforcement.learning_rate=1e-30", "seed=5"), tmp_path / "new", progress=quiet()
    )
    assert same(weights(checkpoint_path(source, step or 3)), first_update(tmp_path / "new")[0].model.state_dict())
    stored = run_recipe(tmp_path / "new").recipe
    assert stored.start_from.path == stored.policy.path == str(checkpoint_path(source, step or 3))
    assert stored.start_from.step == (step or 3)
    assert stored.policy.tiny is None


def adam_steps(state):
    return {int(each["step"]) for part in state["optimizers"] for each in part["state"].values() if "step" in each}


def test_all_state_continues_the_optimizer_and_restarts_the_schedule(source, tmp_path):
    for what in ("weights", "all"):
        start = f"start_from={{path: {source}, step: 2, what: {what}}}"
        train(small(start, "reinforcement.steps=1"), tmp_path / what, progress=quiet())
    before = load_checkpoint(checkpoint_path(source, 2))[1]
    after = {what: first_update(tmp_path / what)[1] for what in ("weights", "all")}
    assert adam_steps(before) == {2}
    assert adam_steps(after["weights"]) == {1}
    assert adam_steps(after["all"]) == {3}
    assert after["all"]["done"] == after["weights"]["done"] == 1
    assert not same(weights(checkpoint_path(tmp_path / "all", 1)), weights(checkpoint_path(tmp_path / "weights", 1)))


def test_a_chain_of_stages_starts_from_a_checkpoint(source, tmp_path):
    stages = [{"reinforcement": {"steps": 1, "learning_rate": 1e-30}} for _ in range(2)]
    keys = [key for key in OVERRIDES if not key.startswith("reinforcement.")]
    recipe = load_recipe("demo", [*keys, f"start_from={source}@1", "reinforcement=null"], stages=stages)
    train(recipe, tmp_path / "new", progress=quiet())
    chain = sorted((tmp_path / "new" / "stages").iterdir())
    assert all(same(weights(checkpoint_path(source, 1)), weights(checkpoint_path(stage, 1))) for stage in chain)
    assert [run_recipe(stage).recipe.start_from is None for stage in chain] == [False, True]


@pytest.mark.parametrize("what", ["weights", "all"])
def test_a_started_run_that_is_killed_resumes_to_the_same_weights(source, tmp_path, what):
    start = f"start_from={{path: {source}, what: {what}}}"
    train(small(start, "reinforcement.steps=2"), tmp_path / "unstopped", progress=quiet())
    stopped = load_recipe("demo", [*OVERRIDES, start, "reinforcement.steps=2"])
    rows = []

    def stop(row):
        rows.append(row)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(stopped, tmp_path / "killed", progress=quiet(), on_metrics=stop)
    train(stopped, tmp_path / "killed", resume=True, progress=quiet())
    expected, killed = (weights(checkpoint_path(tmp_path / name, 2)) for name in ("unstopped", "killed"))
    assert same(expected, killed)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("SOURCE@7", "has no checkpoint of step 7; existing steps: 1, 2, 3"),
        ("SOURCE/checkpoints/step-000007", "no checkpoint step-000007; existing checkpoints: step-000001, step-0"),
        ("/nowhere", "has no checkpoint; it is not a run with checkpoints"),
        (
            "{path: SOURCE, what: all}",
            "the checkpoint is of stage reinforcement with optimizer .*, but the first stage .* adamw",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_one_line(source, tmp_path, start, message):
    fitting = ["reinforcement.optimizer=adamw"] if "all" in start else []
    recipe = small(f"start_from={start.replace('SOURCE', str(source))}", *fitting)
    with pytest.raises(RecipeError, match=f"start_from.*{message}"):
        train(recipe, tmp_path / "new", progress=quiet())


def test_the_command_in_the_refusal_of_a_change_starts_a_new_run(source):
    refused = whetstone("train", source, "--resume", "seed=7")
    assert refused.returncode == 2
    command = refused.stderr.rpartition("whetstone ")[2].split()
    done = whetstone(*command, "reinforcement.steps=1", "--plain")
    assert done.returncode == 0, done.stderr
    new = run_recipe(source.with_name(f"{source.name}-2")).recipe
    assert (new.seed, new.start_from.step) == (7, 3)
