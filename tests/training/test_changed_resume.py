"""A run continues with its own recipe, and with another one from its last checkpoint on."""

import asyncio
import json
import shlex
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cli import whetstone
from support.small import SMALL
from whetstone.algorithms import ADVANTAGES
from whetstone.analysis import RunReplay
from whetstone.errors import RunDirectoryError, WhetstoneError
from whetstone.plugins import get_component_options
from whetstone.recipe import load_recipe
from whetstone.recipe.resume_changes import EFFECTS, RecipeChange, find_differences, find_effect, list_eras
from whetstone.recipe.settings import EnvironmentSettings, Recipe
from whetstone.recipe.settings_base import Settings, find_section
from whetstone.record import latest_checkpoint, run_recipe
from whetstone.record.run_directory import read_changes, run_eras
from whetstone.record.starting import resolve_start
from whetstone.reporting import Journal, Progress
from whetstone.training import train
from whetstone.training.changed_resume import refuse_change
from whetstone.viewer.runs import ViewedRun

ALTERNATING = [
    "reward=support.small:alternating",
    "supervised=null",
    "ablations=null",
    "evaluation.episodes=2",
    "reinforcement.checkpoint_interval_steps=1",
    "reinforcement.keep_last=9",
]


def small(*overrides):
    fitting = [key for key in SMALL if not key.startswith("supervised.")]
    return load_recipe("demo", [*fitting, *ALTERNATING, *overrides])


def quiet():
    return Progress(quiet=True)


def weights(run_dir):
    return torch.load(latest_checkpoint(run_dir) / "trainer" / "optimizer.pt", weights_only=True), {
        path.name: path.read_bytes() for path in latest_checkpoint(run_dir).glob("*.safetensors")
    }


def adam_steps(optimizers):
    return {int(each["step"]) for part in optimizers for each in part["state"].values() if "step" in each}


def numbers(run_dir):
    """Return the rows of the metrics without times."""
    by_clock = ("time/", "throughput/", "memory/")
    return [
        {key: value for key, value in row.items() if not key.startswith(by_clock)} for row in Journal(run_dir).read()
    ]


def truncate_run(run_dir, steps):
    """Restore the state after a kill at the checkpoint of that step: no later checkpoint, and no summary."""
    for path in (run_dir / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > steps:
            shutil.rmtree(path)
    (run_dir / "summary.json").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("continuing") / "run"
    train(small("reinforcement.steps=3"), run_dir, progress=quiet())
    return run_dir


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def test_a_run_continues_with_its_own_recipe(run):
    truncate_run(run, 1)
    before = numbers(run)
    train(run, resume=True, progress=quiet())
    assert numbers(run) == before
    assert not read_changes(run)
    assert json.loads((run / "summary.json").read_text())["recipe"] == small().name


def test_the_command_continues_a_run_and_names_what_is_needed(run):
    done = whetstone("train", "run", "--resume", "reinforcement.steps=4", "--plain", cwd=run.parent)
    assert done.returncode == 0, done.stderr
    assert "after step 3 of reinforcement: reinforcement.steps 3 → 4" in done.stdout + done.stderr
    refused = whetstone("train", "run", cwd=run.parent)
    assert refused.returncode == 2
    assert "add --resume" in refused.stderr


def test_more_steps_and_another_rate_are_recorded_and_applied(run):
    first, optimizer = numbers(run), weights(run)[0]
    train(run, resume=True, changes=["reinforcement.steps=5", "reinforcement.learning_rate=1e-4"], progress=quiet())
    (change,) = read_changes(run)
    assert (change.stage, change.step) == ("reinforcement", 3)
    rate = small().recipe.reinforcement.learning_rate
    assert change.keys == {"reinforcement.steps": (3, 5), "reinforcement.learning_rate": (rate, 1e-4)}
    rows = numbers(run)
    assert rows[:3] == first
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row.get("run/recipe_changes") for row in rows] == [None, None, None, 1, 1]
    assert max(row["update/learning_rate"] for row in rows[3:]) <= 1e-4 < rows[2]["update/learning_rate"]
    state, before = weights(run)[0], optimizer["optimizers"]
    assert max(adam_steps(state["optimizers"])) == max(adam_steps(before)) + 2  # the optimizer continues
    recipe = run_recipe(run).recipe
    assert recipe.reinforcement.steps == 5
    assert (run / "evaluations" / "reinforcement-000003.json").is_file()


def test_change_is_shown_by_why_the_report_the_viewer_and_the_summary(run):
    train(run, resume=True, changes=["reinforcement.steps=4"], progress=quiet())
    line = "after step 3 of reinforcement: reinforcement.steps 3 → 4"
    assert line in whetstone("why", run).stdout
    assert line in whetstone("show", run).stdout
    assert line in (run / "report.html").read_text()
    assert json.loads(whetstone("why", run, "--json").stdout)["changes"][0]["step"] == 3
    assert ViewedRun(run, run.name).describe_run()["changes"] == [line]


def test_an_appendix_has_every_recipe_of_a_changed_run_and_the_options_of_its_components(run, tmp_path):
    train(run, resume=True, changes=["reinforcement.steps=4"], progress=quiet())
    changes = json.loads((run / "changes.json").read_text())
    discarded = {**changes[0], "keys": {"reinforcement.steps": {"before": 4, "after": 4}}}
    (run / "changes.json").write_text(json.dumps([*changes, discarded]))  # changed again before a step was made
    assert whetstone("show", run, "--appendix", tmp_path / "appendix").returncode == 0
    recipes = {path.name: load_recipe(path).recipe for path in (tmp_path / "appendix" / "recipes").glob("*.yaml")}
    assert {name: recipe.reinforcement.steps for name, recipe in recipes.items()} == {
        "demo.yaml": 4,
        "demo-until-reinforcement-step-3.yaml": 3,
    }
    page = (tmp_path / "appendix" / "appendix.md").read_text()
    assert "after step 3 of reinforcement: reinforcement.steps 3 → 4" in page
    (line,) = [line for line in page.splitlines() if line.startswith("| advantage | group_relative |")]
    for name, parameter in get_component_options(ADVANTAGES["group_relative"]).items():
        assert f"{name}: {json.dumps(parameter.default)}" in line


CHANGES = {
    "rate": ["reinforcement.learning_rate=3e-4"],
    "batch": ["reinforcement.tasks_per_step=3"],
    "smaller batch": ["reinforcement.tasks_per_step=1"],
    "group": ["rollout.group_size=4"],
    "temperature": ["rollout.temperature=0.7"],
    "loss": ["objective=cispo", "reinforcement.reference_kl=0.1", "reinforcement.minibatches=2"],
    "tokens": ["rollout.max_new_tokens=4", "advantage=rloo"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("mode", ["synchronous", "ahead"])
def test_killed_at_each_checkpoint_after_a_change_equals_not_killed(tmp_path, name, mode):
    ahead = ["reinforcement.admit_ahead=1", "reinforcement.max_staleness=1", "reinforcement.deterministic=true"]
    expected = tmp_path / "unstopped"
    train(small("reinforcement.steps=2", *(ahead if mode == "ahead" else [])), expected, progress=quiet())
    truncate_run(expected, 1)  # the change then applies after update 2, which is repeated with the first recipe
    train(expected, resume=True, changes=["reinforcement.steps=4", *CHANGES[name]], progress=quiet())
    assert read_changes(expected)[0].step == 2
    for step in (1, 2, 3):
        killed = shutil.copytree(expected, tmp_path / f"killed-{step}")
        truncate_run(killed, step)
        train(killed, resume=True, progress=quiet())
        assert numbers(killed) == numbers(expected), step
        assert weights(killed)[1] == weights(expected)[1], step


def test_a_stopped_run_changes_after_its_checkpoint_and_discards_unused_groups(tmp_path):
    run = tmp_path / "run"
    train(small("reinforcement.steps=4"), run, progress=quiet())
    truncate_run(run, 2)
    lines = (run / "store" / "journal.jsonl").read_text().splitlines(keepends=True)
    events = [json.loads(line) for line in lines]
    # as a kill leaves it after the groups of update 3 were sampled, before the update
    cut = next(i for i, e in enumerate(events) if e["event"] == "updated" and e["update"] == 2)
    (run / "store" / "journal.jsonl").write_text("".join(lines[:cut]))
    train(run, resume=True, changes=["rollout.group_size=3"], progress=quiet())
    rows = [json.loads(line) for line in (run / "store" / "journal.jsonl").read_text().splitlines()]
    consumed = {row["update"]: row["groups"] for row in rows if row["event"] == "consumed"}
    assert not set(consumed[2]) & set(
        next(e["groups"] for e in events if e["event"] == "consumed" and e["update"] == 2)
    )
    assert [row["cost_per_step/episodes"] for row in numbers(run)] == [4, 4, 6, 6]


def test_replay_repeats_the_updates_before_and_after_a_change(run):
    changes = ["reinforcement.steps=5", "reinforcement.learning_rate=1e-4", "advantage=rloo", "rollout.temperature=0.8"]
    train(run, resume=True, changes=changes, progress=quiet())
    (run / "summary.json").unlink()
    checks = asyncio.run(_replayed(run))
    assert {check.what: check.changed for check in checks} == dict.fromkeys((check.what for check in checks), 0)
    assert "updates 1 to 5" in {check.what for check in checks}
    # with only the current recipe, the updates before the change would differ
    (run / "changes.json").unlink()
    assert any(check.changed for check in asyncio.run(_replayed(run)) if check.what.startswith(("updates", "credit")))


async def _replayed(run_dir):
    return [check async for check in RunReplay(run_dir).recompute_all(updates=True)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seed=1", r"seed cannot change in a run \(from 0 to 1\); a new run from this checkpoint: whetstone train "),
        ("policy.tiny.hidden_size=32", "a new run with it: whetstone train"),
        ("tasks.source=echo", "cannot change"),
        ("reinforcement.optimizer=adamw", "reinforcement.optimizer cannot change"),
        ("reinforcement.steps=2", "3 steps are made already"),
        ("reinforcement.learning_rate=1e-5", "no effect, since reinforcement ended after step 3"),
    ],
)
def test_a_key_that_cannot_change_is_refused_and_nothing_is_written(run, change, message):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(WhetstoneError, match=message) as error:
        train(run, resume=True, changes=[change], progress=quiet())
    assert len(str(error.value).splitlines()) == 1
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_suggested_command_has_the_values_as_a_shell_and_a_recipe_read_them(tmp_path):
    different = {"preference": ({"path": "x" * 300}, {"steps": 3}), "supervised": ({"steps": 1}, None)}
    with pytest.raises(RunDirectoryError) as error:
        refuse_change(tmp_path / "run", "preference", different, "cannot change in a run")
    problem, _, command = str(error.value).partition("; a new run from this checkpoint: ")
    assert shlex.split(command)[4:6] == ['preference={"steps": 3}', "supervised=null"]
    assert problem.endswith('… to {"steps": 3})')


def test_a_finished_stage_keeps_its_settings(tmp_path):
    run = tmp_path / "run"
    overrides = ["supervised.steps=1", "supervised.batch_size=2", "reinforcement.steps=1"]
    train(small("supervised={steps: 1}", *overrides), run, progress=quiet())
    with pytest.raises(RunDirectoryError, match="the stage supervised is finished"):
        train(run, resume=True, changes=["supervised.learning_rate=1e-4", "reinforcement.steps=2"], progress=quiet())


def test_keys_without_an_effect_on_results_are_stored_without_a_change(run):
    truncate_run(run, 1)
    train(run, resume=True, changes=["title=another", "reinforcement.keep_last=5"], progress=quiet())
    assert not read_changes(run)
    assert run_recipe(run).recipe.title == "another"


def keys_below(model, above=""):
    for name, field in model.model_fields.items():
        yield f"{above}{name}"
        inner = find_section(field.annotation)
        if inner is not None:
            yield from keys_below(inner, f"{above}{name}.")


def test_every_declared_field_exists_and_identity_keys_cannot_change():
    def classes(cls):
        return [cls, *(below for each in cls.__subclasses__() for below in classes(each))]

    for cls in [*classes(Settings), EnvironmentSettings]:
        for field, effect in cls.__dict__.get("CHANGES", {}).items():
            assert field in cls.model_fields, (cls, field)
            assert effect in EFFECTS
    by_effect = {}
    for key in keys_below(Recipe):
        by_effect.setdefault(find_effect(key), set()).add(key)
    assert {"seed", "policy.path", "policy.tiny", "chat.format", "tasks.source", "reward"} <= by_effect["fixed"]
    assert {"reinforcement.steps", "reinforcement.budget.episodes"} <= by_effect["schedule"]
    assert "reinforcement.learning_rate" in by_effect["update"]
    assert {"reinforcement.tasks_per_step", "rollout.group_size"} <= by_effect["sampling"]


VALUES = {
    "reinforcement.steps": st.integers(1, 500),
    "reinforcement.learning_rate": st.floats(1e-6, 1e-2),
    "reinforcement.budget": st.sampled_from([{"episodes": 5}, {"seconds": 2.5}]),
    "objective": st.sampled_from(["gspo", "cispo"]),
    "advantage": st.sampled_from(["rloo", "group_relative"]),
    "rollout.stop_strings": st.lists(st.sampled_from(["a", "b"]), max_size=2),
    "importance_correction": st.sampled_from(["truncated", "masked"]),
}


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(list(VALUES)).flatmap(lambda key: st.tuples(st.just(key), VALUES[key])), max_size=4))
def test_stored_recipe_of_every_era_is_the_original(changes):
    had = [small()]
    recorded = []
    for number, (key, value) in enumerate(changes):
        had.append(had[-1].with_changes({key: value}))
        different = find_differences(had[-2].to_dict(), had[-1].to_dict())
        stored = RecipeChange("reinforcement", number, different)
        recorded.append(RecipeChange.from_json(json.loads(json.dumps(stored.to_json()))))
    eras = list_eras(had[-1], recorded)
    assert [era.resolved.dump() for era in eras] == [each.dump() for each in had]


def test_the_rate_after_a_change_of_the_schedule_is_reported_and_used(run):
    lines = []
    progress = quiet()
    progress.say = lines.append
    changes = ["reinforcement.steps=6", "reinforcement.decay_fraction=1", "reinforcement.warmup_fraction=0"]
    train(run, resume=True, changes=changes, progress=progress)
    rate = run_recipe(run).recipe.reinforcement.learning_rate
    # linear decay over all 6 steps: (6 - 3) / (6 + 1) of the peak after 3 steps
    expected = rate * 3 / 7
    assert numbers(run)[3]["update/learning_rate"] == pytest.approx(expected)
    notice = f"the learning rate of step 4 of reinforcement is {expected:.3g} (no step of the earlier recipe)"
    assert notice in lines


def test_sampling_that_runs_ahead_by_timing_discards_groups_of_the_earlier_recipe(tmp_path):
    run = tmp_path / "run"
    ahead = ["reinforcement.admit_ahead=1", "reinforcement.max_staleness=2", "reinforcement.steps=4"]
    train(small(*ahead), run, progress=quiet())
    truncate_run(run, 2)
    lines = (run / "store" / "journal.jsonl").read_text().splitlines(keepends=True)
    events = [json.loads(line) for line in lines]
    cut = next(i for i, e in enumerate(events) if e["event"] == "consumed" and e["update"] == 2)
    earlier = {event["group"] for event in events[:cut] if event["event"] == "admitted"}
    (run / "store" / "journal.jsonl").write_text("".join(lines[:cut]))
    train(run, resume=True, changes=["rollout.group_size=3"], progress=quiet())
    rows = [json.loads(line) for line in (run / "store" / "journal.jsonl").read_text().splitlines()]
    consumed = {row["update"]: row["groups"] for row in rows if row["event"] == "consumed"}
    assert sorted(consumed) == [0, 1, 2, 3]
    assert not earlier & {*consumed[2], *consumed[3]}
    lost = {row["group"] for row in rows if row["event"] == "lost" and row["reason"] == "recipe_changed"}
    assert lost == earlier - {*consumed[0], *consumed[1]}


def test_a_chain_of_stages_continues_with_its_own_recipe_and_does_not_change(tmp_path):
    run = tmp_path / "run"
    keys = [key for key in ALTERNATING if not key.startswith("reinforcement.")]
    fitting = [key for key in SMALL if not key.startswith(("supervised.", "reinforcement."))]
    stage = {"steps": 1, "tasks_per_step": 2}
    chain = [{"reinforcement": stage}, {"reinforcement": {**stage, "learning_rate": 1e-4}}]
    train(load_recipe("demo", [*fitting, *keys, "reinforcement=null"], stages=chain), run, progress=quiet())
    expected = {path.name: weights(path)[1] for path in (run / "stages").iterdir()}
    shutil.rmtree(run / "stages" / "2-reinforcement")
    (run / "summary.json").unlink()
    train(run, resume=True, progress=quiet())
    assert {path.name: weights(path)[1] for path in (run / "stages").iterdir()} == expected
    with pytest.raises(RunDirectoryError, match=r"cannot change in a chain of stages .* start_from="):
        train(run, resume=True, changes=["rollout.group_size=4"], progress=quiet())
    started = resolve_start(small(f"start_from={run}")).recipe.start_from
    assert started.path == str(latest_checkpoint(run / "stages" / "2-reinforcement"))


def test_a_kill_between_the_two_writes_of_a_change_keeps_the_change(run):
    before = (run / "recipe.yaml").read_bytes()
    train(run, resume=True, changes=["reinforcement.steps=4"], progress=quiet())
    (run / "recipe.yaml").write_bytes(before)
    assert run_recipe(run).recipe.reinforcement.steps == 4
    assert [era.resolved.recipe.reinforcement.steps for era in run_eras(run)] == [3, 4]


def test_project_folder_with_a_recipe_is_not_a_run(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "recipe.yaml").write_text("extends: demo\n")
    fitting = [key for key in SMALL if not key.startswith("supervised.")]
    done = whetstone("train", "demo", *fitting, *ALTERNATING, "--plain", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "demo" / "summary.json").is_file()
