"""`whetstone bisect` finds the first difference of two runs at its level."""

import hashlib
import json
import shutil
import zlib

import pytest
from safetensors.torch import load_file, save_file

from support.cli import whetstone
from support.small import SMALL
from whetstone.analysis import compare_runs
from whetstone.recipe import load_recipe
from whetstone.record import checkpoint_path
from whetstone.record.checkpoint import CHECKSUMS
from whetstone.reporting import Progress
from whetstone.training import train

OVERRIDES = [
    *(key for key in SMALL if not key.startswith("supervised.")),
    "supervised=null",
    "ablations=null",
    "evaluation.episodes=2",
    "reward=support.small:alternating",
    "reinforcement.steps=3",
    "reinforcement.checkpoint_interval_steps=1",
    "reinforcement.keep_last=9",
]


def trained(folder, *overrides):
    train(load_recipe("demo", [*OVERRIDES, *overrides]), folder, progress=Progress(quiet=True))
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("bisect") / "a")


@pytest.fixture
def copy(original, tmp_path):
    return shutil.copytree(original, tmp_path / "b")


def planted(run, update, change):
    """Change the first trajectory of a recorded update, and its line in the journal."""
    journal = run / "store" / "journal.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    number = next(e["groups"] for e in events if e["event"] == "consumed" and e["update"] == update)[0]
    ends = {}
    contents = {e["file"]: (run / "trajectories" / e["file"]).read_bytes() for e in events if e["event"] == "kept"}
    written = dict.fromkeys(contents, b"")
    for event in (e for e in events if e["event"] == "kept"):
        lines = contents[event["file"]][event["offset"] : event["offset"] + event["length"]]
        if event["group"] == number:
            first, _, rest = lines.partition(b"\n")
            row = json.loads(first)
            change(row)
            lines = json.dumps(row).encode() + b"\n" + rest
        event |= {"offset": ends.get(event["file"], 0), "length": len(lines), "checksum": zlib.crc32(lines)}
        ends[event["file"]] = event["offset"] + len(lines)
        written[event["file"]] += lines
    for name, content in written.items():
        (run / "trajectories" / name).write_bytes(content)
    journal.write_text("".join(json.dumps(event) + "\n" for event in events))


def other_token(row):
    row["turns"][0]["action"]["ids"][1] += 1


def other_logprob(row):
    row["turns"][0]["action"]["logprobs"][2] -= 1e-7


def other_prompt(row):
    row["turns"][0]["context"]["ids"][3] += 1


def other_reward(row):
    row["score"]["value"] += 0.25


def other_end(row):
    row["ended"] = "timeout"


def other_task(row):
    row["task_id"] = "another"


@pytest.mark.parametrize(
    ("change", "level", "where"),
    [
        (other_task, "task", {}),
        (other_prompt, "context", {"turn": 0, "token": 3}),
        (other_logprob, "log-prob", {"turn": 0, "token": 2}),
        (other_token, "sampled token", {"turn": 0, "token": 1}),
        (other_end, "end", {}),
        (other_reward, "reward", {}),
    ],
)
@pytest.mark.parametrize("update", [0, 1])
def test_first_difference_is_found_at_its_level_and_place(original, copy, change, level, where, update):
    planted(copy, update, change)
    first = compare_runs(original, copy).first
    assert (first.level, first.stage, first.step, first.group) == (level, "reinforcement", update + 1, 0)
    assert {name: getattr(first, name) for name in where} == where
    if "token" in where:
        assert first.text  # the tokens before it, as text


def test_earlier_of_two_differences_is_found(original, copy):
    planted(copy, 1, other_token)
    planted(copy, 0, other_reward)
    assert compare_runs(original, copy).first.level == "reward"


def test_a_weight_that_differs_is_named(original, copy):
    path = checkpoint_path(copy, 2) / "model.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[0]
    tensors[name].view(-1)[5] += 0.5
    save_file(tensors, path, metadata={"format": "pt"})
    checksums = json.loads((checkpoint_path(copy, 2) / CHECKSUMS).read_text())
    checksums["model.safetensors"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (checkpoint_path(copy, 2) / CHECKSUMS).write_text(json.dumps(checksums))
    first = compare_runs(original, copy).first
    assert (first.level, first.step, first.name) == ("weight", 2, f"{name}[5]")


@pytest.mark.parametrize(
    ("override", "level", "key"),
    [
        ("advantage=leave_one_out", "advantage", "advantage.name"),
        ("aggregation=sequence_sum", "update", "aggregation.mode"),
        ("reinforcement.learning_rate=1e-5", "update", "reinforcement.learning_rate"),
        ("rollout.temperature=0.5", "log-prob", "rollout.temperature"),
    ],
)
def test_a_key_and_the_first_result_that_it_changes_are_reported(original, tmp_path, override, level, key):
    comparison = compare_runs(original, trained(tmp_path / "b", override))
    assert [name for name, *_ in comparison.inputs] == [key]
    assert (comparison.first.level, comparison.first.step) == (level, 1)


def test_another_seed_samples_other_tokens_or_tasks_in_the_first_step(original, tmp_path):
    comparison = compare_runs(original, trained(tmp_path / "b", "seed=1"))
    assert [name for name, *_ in comparison.inputs] == ["seed"]
    assert comparison.first.step <= 1
    assert comparison.first.level in ("task", "context", "log-prob", "sampled token")


def test_equal_runs_have_no_difference(original, tmp_path):
    second = trained(tmp_path / "b", "title=another", "reinforcement.keep_last=4")
    comparison = compare_runs(original, second)
    assert comparison.first is None
    assert not comparison.inputs
    result = whetstone("bisect", original, second)
    assert result.returncode == 0
    assert "no difference through step 3 of reinforcement" in result.stdout


def test_runs_of_different_length_are_compared_over_common_steps(original, copy):
    train(copy, resume=True, changes=["reinforcement.steps=4"], progress=Progress(quiet=True))
    result = whetstone("bisect", original, copy)
    assert result.returncode == 1  # the recipes differ
    assert "reinforcement.steps: 3 | 4" in result.stdout
    assert "no difference through step 3 of reinforcement" in result.stdout
    assert "3 steps in A, 4 in B" in result.stdout


def test_the_environment_of_two_runs_is_compared(original, copy):
    for run, version in ((original, "2.1"), (copy, "2.2")):
        (run / "environment.json").write_text(json.dumps({"packages": {"torch": version}}))
    try:
        assert ("environment: packages.torch", "2.1", "2.2") in compare_runs(original, copy).inputs
    finally:
        (original / "environment.json").unlink()


def test_the_command_shows_place_text_and_both_values(original, copy):
    planted(copy, 1, other_token)
    result = whetstone("bisect", original, copy)
    assert result.returncode == 1
    assert "first difference: sampled token" in result.stdout
    assert "step 2, group 0" in result.stdout
    assert "  after " in result.stdout
    printed = json.loads(whetstone("bisect", original, copy, "--json").stdout)
    assert (printed["first"]["level"], printed["first"]["token"]) == ("sampled token", 1)
