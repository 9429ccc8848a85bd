"""Digests of input files are part of a run's identity: other content at the same path is another run."""

import json

import pytest

from support.conversations import conversations, written
from support.small import SMALL
from whetstone.errors import RunDirectoryError
from whetstone.recipe import list_stages, load_recipe
from whetstone.record.input_digests import changed_inputs, input_digests
from whetstone.record.run_directory import check_inputs, open_run_directory, run_inputs
from whetstone.reporting import Progress
from whetstone.training.stages import run_stages

PLAIN = ["ablations=null", "supervised=null", "reinforcement=null"]


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    written(path, conversations(3))
    return path


def imitating(chats):
    return load_recipe("demo", [*SMALL, "ablations=null", f"supervised.data={chats}"])


def chain(chats):
    stages = [{"supervised": {"data": str(chats), "steps": 1}}, {"reinforcement": {"steps": 1}}]
    return list_stages(load_recipe("demo", PLAIN, stages=stages))


def test_digest_depends_on_content_and_not_on_the_date(chats):
    (key, digest), = input_digests(imitating(chats)).items()  # fmt: skip
    assert key == "supervised.data.path"
    chats.write_bytes(chats.read_bytes())
    assert input_digests(imitating(chats)) == {key: digest}
    chats.write_bytes(chats.read_bytes() + b"\n")
    assert input_digests(imitating(chats)) != {key: digest}


def test_files_in_stages_and_lists_are_inputs(chats, tmp_path):
    (tmp_path / "run").mkdir()
    chained = load_recipe("demo", PLAIN, stages=[{"supervised": {"data": str(chats)}}, {"reinforcement": {}}])
    assert list(input_digests(chained)) == ["stages.0.supervised.data"]
    stored = {"data": [str(chats), str(tmp_path / "run")]}
    mixture = load_recipe("demo", ["ablations=null"], reinforcement={"offline_mixture": stored})
    assert list(input_digests(mixture)) == [f"reinforcement.offline_mixture.data.{number}.path" for number in (0, 1)]
    assert not input_digests(load_recipe("demo"))


def test_folders_count_every_file_and_checkpoints_their_checksums(tmp_path):
    folder = tmp_path / "policy"
    (folder / "trainer").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    recipe = load_recipe("demo", ["policy.tiny=null", f"policy.path={folder}"])
    one = input_digests(recipe)
    (folder / ".cache").write_text("nothing")
    assert input_digests(recipe) == one
    (folder / "model.safetensors").write_text("weights")
    other = input_digests(recipe)
    assert other != one
    (folder / "trainer" / "checksums.json").write_text("{}")
    known = input_digests(recipe)
    (folder / "model.safetensors").write_text("unread")
    assert input_digests(recipe) == known != other


def test_resume_with_changed_data_is_refused_with_the_file(chats, tmp_path):
    resolved, run_dir, lines = imitating(chats), tmp_path / "run", []
    with open_run_directory(run_dir, resolved, resume=False):
        (run_dir / "metrics.jsonl").write_text("{}\n")
    check_inputs(run_dir, resolved, log=lines.append)
    content = chats.read_bytes()
    written(chats, conversations(4))
    message = r"chats.jsonl \(supervised.data.path\) differs from the input that this run started with; restore it"
    with pytest.raises(RunDirectoryError, match=message):
        check_inputs(run_dir, resolved, log=lines.append)
    chats.write_bytes(content)
    check_inputs(run_dir, resolved, log=lines.append)
    assert lines == []


def test_an_edited_file_is_accepted_on_request_and_recorded(chats, tmp_path):
    resolved, run_dir, lines = imitating(chats), tmp_path / "run", []
    with open_run_directory(run_dir, resolved, resume=False):
        (run_dir / "metrics.jsonl").write_text("{}\n")
    (run_dir / "environment.json").write_text('{"events": []}')
    written(chats, conversations(4))
    with pytest.raises(RunDirectoryError, match="resume with --accept-changes to continue with the new content"):
        check_inputs(run_dir, resolved, log=lines.append)
    check_inputs(run_dir, resolved, log=lines.append, accept_changes=True)
    assert run_inputs(run_dir) == input_digests(resolved)
    (line,) = lines
    assert line.startswith(f"{chats} (supervised.data.path) was edited; the run continues with its new content")
    (event,) = json.loads((run_dir / "environment.json").read_text())["events"]
    assert event["inputs"] == {"supervised.data.path": input_digests(resolved)["supervised.data.path"]}
    check_inputs(run_dir, resolved, log=lines.append)  # the new content is now that of the run
    assert len(lines) == 1


def test_an_edited_model_is_never_accepted(chats, tmp_path):
    model, run_dir = tmp_path / "model", tmp_path / "run"
    model.mkdir()
    (model / "config.json").write_text("{}")
    resolved = load_recipe("demo", [*SMALL, "ablations=null", "policy.tiny=null", f"policy.path={model}"])
    with open_run_directory(run_dir, resolved, resume=False):
        (run_dir / "metrics.jsonl").write_text("{}\n")
    (model / "config.json").write_text('{"a": 1}')
    with pytest.raises(RunDirectoryError, match=r"\(policy.path\) differs .* or choose another --run-dir$"):
        check_inputs(run_dir, resolved, log=print, accept_changes=True)


def test_missing_inputs_are_left_to_their_reader(chats):
    before = input_digests(imitating(chats))
    resolved = imitating(chats)
    chats.unlink()
    assert changed_inputs(resolved, before) == {}


def test_run_of_an_earlier_version_resumes_and_reports_unknown_inputs(chats, tmp_path):
    resolved, run_dir, lines = imitating(chats), tmp_path / "run", []
    with open_run_directory(run_dir, resolved, resume=False):
        (run_dir / "inputs.json").unlink()
    check_inputs(run_dir, resolved, log=lines.append)
    assert "stored no digests of its inputs" in lines[0]
    assert run_inputs(run_dir) == input_digests(resolved)


def test_keys_of_an_earlier_release_are_converted(chats, tmp_path):
    resolved, run_dir = imitating(chats), tmp_path / "run"
    with open_run_directory(run_dir, resolved, resume=False):
        (run_dir / "inputs.json").write_text('{"rollout.stops.0.path": "ab", "policy.path": "cd"}')
    assert run_inputs(run_dir) == {"rollout.early_stopping.0.path": "ab", "policy.path": "cd"}


class RecordedProgress(Progress):
    """Record the reported lines."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def run_chain(stages, run_dir, *also):
    """Return the stages that were run and the reported lines."""
    ran, progress = [], RecordedProgress()

    def train(resolved, folder, before):
        ran.append(folder.name)
        (folder / "evaluations").mkdir(parents=True)
        (folder / "trajectories").mkdir()
        (folder / "checkpoints" / "step-000001" / "trainer").mkdir(parents=True)
        (folder / "checkpoints" / "step-000001" / "trainer" / "checksums.json").write_text("{}")
        position = {"stage": "", "done": {"supervised": 1}, "version": 1}
        (folder / "checkpoints" / "step-000001" / "trainer" / "position.json").write_text(json.dumps(position))
        for name in ("untrained", "after"):
            (folder / "evaluations" / f"{name}.json").write_text("{}")
            (folder / "trajectories" / f"evaluation-{name}.jsonl").write_text("")
        summary = dict.fromkeys(("before", "after", "recipe", "seed", "parameters", "policy", "method"))
        summary |= {
            "evaluations": {
                name: {"success": 0.5, "interval": [0, 1], "episodes": 2} for name in ("untrained", "after")
            },
            "failed": {"episodes": 0, "causes": {}},
        }
        (folder / "summary.json").write_text(json.dumps(summary | {"seconds": {}, "throughput": {}}))

    run_stages(stages, run_dir, train, also=also, progress=progress)
    return ran, progress.lines


def test_stage_is_reused_only_with_the_same_data(chats, tmp_path):
    assert run_chain(chain(chats), tmp_path / "one")[0] == ["1-supervised", "2-reinforcement"]
    assert run_chain(chain(chats), tmp_path / "two", tmp_path / "one")[0] == []
    written(chats, conversations(4))
    ran, messages = run_chain(chain(chats), tmp_path / "three", tmp_path / "one")
    # the second stage reads no file; but its initial weights differ
    assert ran == ["1-supervised", "2-reinforcement"]
    assert [line.partition("not reused: ")[2] for line in messages if "not reused" in line] == [
        "its inputs or those of an earlier stage differ"
    ] * 2


def test_stage_without_digests_is_not_reused_and_that_is_reported(chats, tmp_path):
    run_chain(chain(chats), tmp_path / "one")
    for path in (tmp_path / "one" / "stages").glob("*/stage.json"):
        path.write_text(json.dumps({"key": json.loads(path.read_text())["key"]}))
    ran, messages = run_chain(chain(chats), tmp_path / "two", tmp_path / "one")
    assert len(ran) == 2
    assert "not reused: an earlier version stored no digests" in " ".join(messages)
