"""The viewer never hangs on a run directory, and executes none of its code unless that is allowed."""

import contextlib
import json
import os
import sys

import pytest

from support.viewed_runs import made_run
from whetstone.chat.api.requests import RefusedError
from whetstone.errors import WhetstoneError
from whetstone.viewer.run_files import RunFiles
from whetstone.viewer.runs import open_runs
from whetstone.viewer.viewer_app import Viewer

FILES = [
    "recipe.yaml", "metrics.jsonl", "summary.json", "evaluations/untrained.json", "store/journal.jsonl",
    "trajectories/step-000001.jsonl", "trajectories/step-000009.jsonl", "checkpoints/step-000001/tokenizer.json",
]  # fmt: skip
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def load_everything(folder, tmp_path, **options):
    """Load all that the page requests."""
    (run,) = open_runs([folder], cache=tmp_path / "cache", **options)
    viewer = Viewer([run], folders=[folder])
    run.refresh()
    viewer.state(), viewer.compare(), run.build_curves(), run.load_tokenizer(), viewer.steps(run, {})
    return run, run.describe_run()


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_regular_file_is_not_opened(tmp_path, name):
    folder = made_run(tmp_path / "run")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)  # a reader would wait for a writer
    _, overview = load_everything(folder, tmp_path)
    assert overview["name"]
    path.unlink()
    path.mkdir()
    load_everything(folder, tmp_path)
    path.rmdir()
    path.symlink_to("/dev/zero")
    load_everything(folder, tmp_path, follow_symlinks=True)


def test_link_out_of_the_run_is_followed_only_if_allowed(tmp_path):
    folder = made_run(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    for name in ("summary.json", "metrics.jsonl", "trajectories/step-000002.jsonl"):
        (folder / name).touch()
        (folder / name).rename(tmp_path / "elsewhere" / name.replace("/", "-"))
        (folder / name).symlink_to(tmp_path / "elsewhere" / name.replace("/", "-"))
    (tmp_path / "elsewhere" / "summary.json").write_text('{"secret": 1}')
    run, overview = load_everything(folder, tmp_path)
    assert run.summary == {}
    assert run.metrics.rows == []
    message = "leads out of the run directory; `whetstone view --follow-symlinks` reads it"
    assert f"metrics.jsonl: cannot be read: {message}" in overview["remarks"]
    assert f"step-000002.jsonl: cannot be read: {message}" in overview["remarks"]
    run, _ = load_everything(folder, tmp_path / "other", follow_symlinks=True)
    assert run.summary == {"secret": 1}
    assert run.metrics.rows
    (folder / "inside.json").write_text('{"a": 1}')
    (folder / "link.json").symlink_to(folder / "inside.json")
    assert RunFiles(folder).read_object(folder / "link.json") == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "a: " + "[" * 5000,
        "a: " + "{a: " * 5000,
        '{"title": "x"}\n' + "[" * 5000,
        "a: &a [*a]",
        "x: " + "y" * 300_000,
        "a: !!python/object/apply:os.system [exit]",
        "a: " + "9" * 5000,
        "? [1, 2]\n: 3\na: {? {b: c} : d}",
        "[1, 2]",
    ],
)
def test_a_recipe_of_any_size_and_depth_is_shown_as_text(tmp_path, text):
    folder = made_run(tmp_path / "run")
    (folder / "recipe.yaml").write_text(text)
    run, overview = load_everything(folder, tmp_path)
    assert isinstance(run.recipe, dict)
    json.dumps(overview)


def test_files_are_read_up_to_a_size_limit(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"a": "b" * 100}))
    assert RunFiles(tmp_path).read(path, max_bytes=1000)
    with pytest.raises(OSError, match="is larger than 10 bytes"):
        RunFiles(tmp_path).read(path, max_bytes=10)


@pytest.mark.parametrize("interval", [None, "x", [1], ["a", "b"], {"a": 1}, [0.1, None]])
def test_summary_of_other_types_is_no_verdict(tmp_path, interval):
    folder = made_run(tmp_path / "run")
    summary = {"success": 0.5, "interval": interval}
    (folder / "summary.json").write_text(json.dumps({"before": summary, "after": summary}))
    (folder / "evaluations").mkdir()
    (folder / "evaluations" / "reinforcement-000001.json").write_text(json.dumps(summary))
    run, overview = load_everything(folder, tmp_path)
    assert overview["evaluations"][0]["interval"] is None
    assert "evaluation/success" not in run.build_curves()["reinforcement"]


def test_a_run_of_authors_of_any_length_is_shown_as_long_as_its_tokens(tmp_path):
    folder = made_run(tmp_path / "run")
    path = folder / "trajectories" / "step-000001.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["turns"][0]["context"]["authors"] = [["environment", 10**15]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run, _ = load_everything(folder, tmp_path)
    page = Viewer([run]).trajectory(run, {"id": rows[0]["id"]})
    assert page["turns"][0]["context"]["authors"] == ["environment"] * 3


def test_trajectory_that_cannot_be_shown_is_refused_in_one_line(tmp_path):
    folder = made_run(tmp_path / "run")
    path = folder / "trajectories" / "step-000001.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["turns"][0]["context"]["authors"] = 5
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run, _ = load_everything(folder, tmp_path)
    with pytest.raises(RefusedError, match="cannot be shown: another shape") as refused:
        Viewer([run]).trajectory(run, {"id": rows[0]["id"]})
    assert refused.value.status == 422


# ------------------------------------------------------------ code of a run


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """A run whose recipe names a reward of a custom module; importing the module writes a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("whetstone.plugins._searched", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = made_run(tmp_path / "run")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "viewed_reward.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'w').close()\nasync def mine(trajectory, task):\n    return 0.0\n"
    )
    (folder / "modules.json").write_text(json.dumps([str(tmp_path / "code")]))
    (folder / "recipe.yaml").write_text(
        "policy: {tiny: {hidden_size: 8, layers: 1, heads: 2}}\ntasks: {source: arithmetic}\n"
        "environment: {tools: [calculator]}\nreward: viewed_reward:mine\n"
        "reinforcement: {steps: 3, tasks_per_step: 2, learning_rate: 0.001}\n"
    )
    yield folder
    sys.modules.pop("viewed_reward", None)


@pytest.mark.parametrize(
    ("page", "reason", "is_imported"),
    [
        ("why", "viewed_reward is not imported; `whetstone view --allow-run-code`", True),
        ("data", "this run has no stage supervised", False),  # read without constructing the reward
    ],
)
def test_modules_of_a_run_are_imported_only_if_allowed(own_code, tmp_path, page, reason, is_imported):
    (run,) = open_runs([own_code], cache=tmp_path / "cache")
    run.refresh()
    query = {"id": "group-0/sums/0#0", "stage": "supervised", "first": "0", "count": "1"}
    with pytest.raises((WhetstoneError, RefusedError), match=reason):
        getattr(Viewer([run]), page)(run, query)
    assert not (tmp_path / "imported").exists()
    with contextlib.suppress(WhetstoneError, RefusedError):  # the constructed run ends here
        getattr(Viewer([run], allow_run_code=True), page)(run, query)
    assert (tmp_path / "imported").exists() is is_imported


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ("policy: {path: x, trust_remote_code: true}", "policy.trust_remote_code"),
        ("environment: {tools: [{name: mcp, command: touch x}]}", "environment.tools.0.command"),
    ],
)
def test_remote_code_and_commands_are_refused_by_their_key(tmp_path, recipe, key):
    folder = made_run(tmp_path / "run")
    (folder / "recipe.yaml").write_text(recipe)
    (run,) = open_runs([folder], cache=tmp_path / "cache")
    with pytest.raises(RefusedError, match=f"{key} of recipe.yaml runs code of the run") as refused:
        Viewer([run]).why(run, {"id": "x"})
    assert refused.value.status == 403


def test_unreadable_recipe_allows_nothing(tmp_path):
    folder = made_run(tmp_path / "run")
    (folder / "recipe.yaml").write_text("x: " + "y" * 300_000)
    (run,) = open_runs([folder], cache=tmp_path / "cache")
    with pytest.raises(RefusedError, match=r"recipe\.yaml cannot be read"):
        Viewer([run]).why(run, {"id": "x"})
