"""Evaluation tasks in the training data are reported when a run starts, in its summary and in its report."""

import json

import pytest

from support.cli import whetstone
from support.conversations import computed, conversations, written
from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.assembly.evaluation_overlap import find_overlap
from whetstone.assembly.stage_datasets import check_data, read_demonstrations, read_texts
from whetstone.errors import DataError, RecipeError
from whetstone.recipe import DataSettings, load_recipe
from whetstone.trajectory import Task


def recipe_of(source, *more):
    changes = ["ablations=null", "supervised=null", "reward=support.small:parity", "evaluation.episodes=6", *more]
    return load_recipe("demo", [*SMALL, *changes, "reinforcement.steps=4"], tasks={"source": source})


def test_tasks_are_compared_by_id_prompt_and_normalized_prompt_with_their_answers():
    resolved = recipe_of("support.overlapping_tasks:Twice")
    (entry,) = find_overlap(assemble(resolved), resolved)
    assert (entry["where"], entry["count"], entry["held_out"]) == ("tasks", 3, 6)
    assert entry["matches"] == {"id": 1, "prompt": 1, "normalized prompt": 1}
    assert {example.split(" ")[0] for example in entry["examples"]} == {"same-id", "A", "B"}


def test_generated_tasks_are_equal_only_with_equal_private_values():
    resolved = recipe_of("support.overlapping_tasks:Endless")
    (entry,) = find_overlap(assemble(resolved), resolved)
    assert entry["matches"] == {"id": 1}


def test_no_built_in_task_of_the_demo_is_in_both_splits():
    resolved = load_recipe("demo", [*SMALL, "evaluation.episodes=200"])
    assert find_overlap(assemble(resolved), resolved) == []


@pytest.fixture
def evaluated():
    """Return evaluation tasks of the demo."""
    return assemble(load_recipe("demo", SMALL)).source.held_out(4)


def test_demonstrations_of_evaluation_tasks_are_found_in_their_file(tmp_path, evaluated):
    rows = conversations(5)
    rows.insert(2, {"messages": [{"role": "user", "content": evaluated[1].prompt}, *computed(3, 4)[1:]]})
    rows.append(
        {"messages": [{"role": "user", "content": f"Hi! {evaluated[3].prompt.upper()} ."}, *computed(3, 4)[1:]]}
    )
    path = written(tmp_path / "chats.jsonl", rows)
    data = f"{{path: '{path}', keep_evaluation_tasks: true}}"
    resolved = load_recipe("demo", [*SMALL, "ablations=null", f"supervised.data={data}"])
    assembly = assemble(resolved)
    check_data(assembly, resolved)
    (entry,) = find_overlap(assembly, resolved)
    assert (entry["where"], entry["count"]) == ("supervised.data", 2)
    assert entry["examples"] == [f"{evaluated[1].id} (row 3)", f"{evaluated[3].id} (row 7)"]
    assert entry["searched"] == f"7 rows of {path}"


def test_demonstrations_of_evaluation_tasks_are_left_out_and_reported(tmp_path, evaluated):
    rows = conversations(5)
    rows.insert(
        2, {"messages": [{"role": "user", "content": f" {evaluated[1].prompt.upper()} ."}, *computed(3, 4)[1:]]}
    )
    path = written(tmp_path / "chats.jsonl", rows)
    resolved = load_recipe("demo", [*SMALL, "ablations=null", f"supervised.data={path}"])
    lines = []
    assembly = assemble(resolved)
    assembly.say = lines.append
    source = read_demonstrations(assembly, resolved.recipe.supervised.data, "supervised.data")
    assert len(list(source.iterate_episodes())) == 5
    assert (
        f"1 of 6 conversations contain evaluation tasks and are left out, such as row 3 (task {evaluated[1].id})"
        in (lines[-1])
    )
    assert find_overlap(assembly, resolved) == []
    only = written(tmp_path / "only.jsonl", rows[2:3])
    with pytest.raises(DataError, match="keep_evaluation_tasks: true"):
        read_demonstrations(assembly, DataSettings(path=str(only)), "supervised.data")


def test_keys_of_conversations_are_refused_for_other_data(tmp_path):
    path = written(tmp_path / "texts.jsonl", [{"text": "a"}])
    stage = f"pretraining={{data: {{path: '{path}', length_exponent: 1}}}}"
    resolved = load_recipe("demo", [*SMALL, "ablations=null", "supervised=null", stage])
    assembly = assemble(resolved)
    with pytest.raises(RecipeError, match="length_exponent: has no effect"):
        read_texts(assembly, resolved.recipe.pretraining)
    with pytest.raises(RecipeError, match="keep_evaluation_tasks: has no effect"):
        assembly.stored_reader.groups(DataSettings(path=str(path), keep_evaluation_tasks=True), "offline.data")


def test_stored_episodes_of_evaluation_tasks_are_found_by_their_tasks(tmp_path):
    run = tmp_path / "first"
    first = whetstone("train", "demo", *SMALL, "ablations=null", "supervised=null", "--run-dir", run, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    stored = [json.loads(line) for line in (run / "trajectories" / "step-000001.jsonl").read_text().splitlines()]
    resolved = load_recipe("demo", [*SMALL, "ablations=null"])
    assembly = assemble(resolved)
    assembly.stored_reader.groups(DataSettings(path=str(run)), "offline.data")
    assert stored[0]["task_id"] in {task.id for task in assembly.stored_reader.tasks["offline.data"]}
    assert find_overlap(assembly, resolved) == []
    held_out = assembly.source.held_out(1)[0]
    assembly.stored_reader.tasks["offline.data"].append(Task(held_out.id, ""))
    (entry,) = find_overlap(assembly, resolved)
    assert (entry["where"], entry["matches"]) == ("offline.data", {"id": 1})


@pytest.mark.slow
def test_train_reports_it_at_the_start_in_the_summary_and_in_the_report(tmp_path):
    overrides = [*SMALL, "ablations=null", "supervised=null", "reward=support.small:parity", "evaluation.episodes=6"]
    overrides += ["tasks={source: 'support.overlapping_tasks:Twice'}", "reinforcement.steps=4"]
    done = whetstone("train", "demo", *overrides, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    sentence = "tasks: 3 of 6 evaluation tasks are in the training data (1 by id, 1 by prompt, 1 by normalized prompt; "
    assert sentence in done.stderr
    assert sentence in done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["overlap"][0]["count"] == 3
    assert "3 of 6 evaluation tasks are in the training data" in (tmp_path / "run" / "report.html").read_text()
