"""What a run reads decides what it is: the same path with other content is not the same run."""

import json

import pytest

from tests_conversations import conversations, written
from tests_small import SMALL
from whetstone.errors import RunDirectoryError
from whetstone.recipe import load_recipe, stages_of
from whetstone.record.inputs import changed_input, inputs_of
from whetstone.record.run_directory import check_inputs, claimed, run_inputs
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
    return stages_of(load_recipe("demo", PLAIN, stages=stages))


def test_a_file_is_known_by_its_content_and_not_by_its_date(chats):
    (key, digest), = inputs_of(imitating(chats)).items()  # fmt: skip
    assert key == "supervised.data.path"
    chats.write_bytes(chats.read_bytes())
    assert inputs_of(imitating(chats)) == {key: digest}
    chats.write_bytes(chats.read_bytes() + b"\n")
    assert inputs_of(imitating(chats)) != {key: digest}


def test_every_place_that_names_a_file_counts_those_in_stages_and_lists_too(chats, tmp_path):
    (tmp_path / "run").mkdir()
    whole = load_recipe("demo", PLAIN, stages=[{"supervised": {"data": str(chats)}}, {"reinforcement": {}}])
    assert list(inputs_of(whole)) == ["stages.0.supervised.data"]
    stored = {"data": [str(chats), str(tmp_path / "run")]}
    mixture = load_recipe("demo", ["ablations=null"], reinforcement={"offline_mixture": stored})
    assert list(inputs_of(mixture)) == [f"reinforcement.offline_mixture.data.{number}.path" for number in (0, 1)]
    assert not inputs_of(load_recipe("demo"))


def test_of_a_folder_every_file_counts_and_of_a_checkpoint_its_checksums(tmp_path):
    folder = tmp_path / "policy"
    (folder / "trainer").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    recipe = load_recipe("demo", ["policy.tiny=null", f"policy.path={folder}"])
    one = inputs_of(recipe)
    (folder / ".cache").write_text("nothing")
    assert inputs_of(recipe) == one
    (folder / "model.safetensors").write_text("weights")
    other = inputs_of(recipe)
    assert other != one
    (folder / "trainer" / "checksums.json").write_text("{}")
    known = inputs_of(recipe)
    (folder / "model.safetensors").write_text("unread")
    assert inputs_of(recipe) == known != other


def test_a_run_whose_data_changed_does_not_go_on_and_says_which_file(chats, tmp_path):
    resolved, run_dir, lines = imitating(chats), tmp_path / "run", []
    with claimed(run_dir, resolved, resume=False):
        (run_dir / "metrics.jsonl").write_text("{}\n")
    check_inputs(run_dir, resolved, say=lines.append)
    content = chats.read_bytes()
    written(chats, conversations(4))
    said = r"chats.jsonl \(supervised.data.path\) is not what this run began with; bring that back"
    with pytest.raises(RunDirectoryError, match=said):
        check_inputs(run_dir, resolved, say=lines.append)
    chats.write_bytes(content)
    check_inputs(run_dir, resolved, say=lines.append)
    assert lines == []


def test_what_is_no_longer_there_is_left_to_whoever_reads_it(chats):
    before = inputs_of(imitating(chats))
    resolved = imitating(chats)
    chats.unlink()
    assert changed_input(resolved, before) is None


def test_a_run_of_an_earlier_version_goes_on_and_says_what_is_not_known(chats, tmp_path):
    resolved, run_dir, lines = imitating(chats), tmp_path / "run", []
    with claimed(run_dir, resolved, resume=False):
        (run_dir / "inputs.json").unlink()
    check_inputs(run_dir, resolved, say=lines.append)
    assert "kept no digests of its data" in lines[0]
    assert run_inputs(run_dir) == inputs_of(resolved)


def test_keys_of_an_earlier_release_are_converted(chats, tmp_path):
    resolved, run_dir = imitating(chats), tmp_path / "run"
    with claimed(run_dir, resolved, resume=False):
        (run_dir / "inputs.json").write_text('{"rollout.stops.0.path": "ab", "policy.path": "cd"}')
    assert run_inputs(run_dir) == {"rollout.early_stopping.0.path": "ab", "policy.path": "cd"}


class Heard(Progress):
    """Keeps what is said."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def made(stages, run_dir, *also):
    """(stages that were run, what was said)"""
    ran, heard = [], Heard()

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
        whole = dict.fromkeys(("before", "after", "recipe", "seed", "parameters", "policy", "method"))
        whole |= {
            "evaluations": {
                name: {"success": 0.5, "interval": [0, 1], "episodes": 2} for name in ("untrained", "after")
            },
            "failed": {"episodes": 0, "causes": {}},
        }
        (folder / "summary.json").write_text(json.dumps(whole | {"seconds": {}, "throughput": {}}))

    run_stages(stages, run_dir, train, also=also, progress=heard)
    return ran, heard.lines


def test_a_stage_is_taken_from_another_chain_only_where_it_read_the_same_data(chats, tmp_path):
    assert made(chain(chats), tmp_path / "one")[0] == ["1-supervised", "2-reinforcement"]
    assert made(chain(chats), tmp_path / "two", tmp_path / "one")[0] == []
    written(chats, conversations(4))
    ran, said = made(chain(chats), tmp_path / "three", tmp_path / "one")
    # the second stage reads no file; it begins with other weights all the same
    assert ran == ["1-supervised", "2-reinforcement"]
    assert [line.partition("not taken: ")[2] for line in said if "not taken" in line] == [
        "what it or a stage before it read is another"
    ] * 2


def test_a_stage_that_an_earlier_version_made_is_not_taken_and_that_is_said(chats, tmp_path):
    made(chain(chats), tmp_path / "one")
    for path in (tmp_path / "one" / "stages").glob("*/stage.json"):
        path.write_text(json.dumps({"key": json.loads(path.read_text())["key"]}))
    ran, said = made(chain(chats), tmp_path / "two", tmp_path / "one")
    assert len(ran) == 2
    assert "not taken: a version made it that kept no digests" in " ".join(said)
