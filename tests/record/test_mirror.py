"""Objects in a mirror are at any moment a state that a kill could have left; another machine resumes from it."""

import errno
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid

import fsspec
import pytest
import torch

import crash
from whetstone.errors import RecipeError, RunDirectoryError, SaveError
from whetstone.recipe import load_recipe
from whetstone.record.mirror import Mirror, open_mirror
from whetstone.reporting import Progress
from whetstone.training import train

RECIPE, JOURNAL = "recipe.yaml", "store/journal.jsonl"


@pytest.fixture
def url():
    """Return the address of an in-memory folder."""
    name = f"memory://{uuid.uuid4().hex}/run"
    yield name
    store, root = fsspec.core.url_to_fs(name)
    if store.exists(root):
        store.rm(root, recursive=True)


def stored_objects(url):
    """Return the objects of a store: name → content."""
    store, root = fsspec.core.url_to_fs(url)
    return {name[len(root) + 1 :]: store.cat_file(name) for name in store.find(root)}


def write_run(folder, **files):
    """Write files of a run; `__` in a name is a slash."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def small_run(folder):
    write_run(
        folder,
        recipe_dot_yaml="seed: 1",
        _dot_lock="",
        store__journal_dot_jsonl="one\n",
        trajectories__a="1",
    )
    checkpoint(folder, 1)


def checkpoint(folder, step, content="w"):
    path = folder / "checkpoints" / f"step-{step:06d}"
    write_run(path, model=content, trainer__checksums_dot_json="{}")


def mirror(folder, url, messages=None):
    return Mirror(folder, url, seconds=60, log=(messages if messages is not None else []).append)


def names(url):
    return sorted(stored_objects(url))


def test_complete_files_are_uploaded_and_downloaded_unchanged(tmp_path, url):
    small_run(tmp_path / "run")
    write_run(tmp_path / "run", store___dot_turns_dot_partial="x", checkpoints___dot_step_dot_partial__model="x")
    with mirror(tmp_path / "run", url).upload_periodically():
        pass
    assert names(url) == [
        "checkpoints/step-000001/model",
        "checkpoints/step-000001/trainer/checksums.json",
        RECIPE,
        JOURNAL,
        "trajectories/a",
    ]
    messages = []
    mirror(tmp_path / "other", url, messages).begin(resume=True)
    assert messages == [f"{tmp_path / 'other'}: fetched from {url}"]
    assert {p.relative_to(tmp_path / "other").as_posix() for p in (tmp_path / "other").rglob("*") if p.is_file()} == {
        *names(url)
    }


def test_linked_stage_of_another_run_is_uploaded(tmp_path, url):
    small_run(tmp_path / "other" / "stages" / "1-supervised")
    write_run(tmp_path / "run", recipe_dot_yaml="seed: 2")
    (tmp_path / "run" / "stages").mkdir()
    (tmp_path / "run" / "stages" / "1-supervised").symlink_to("../../other/stages/1-supervised")
    mirror(tmp_path / "run", url).send()
    assert stored_objects(url)[f"stages/1-supervised/{JOURNAL}"] == b"one\n"
    assert stored_objects(url)["stages/1-supervised/checkpoints/step-000001/model"] == b"w"


def test_only_new_files_are_uploaded_and_deleted_checkpoints_are_deleted(tmp_path, url, monkeypatch):
    small_run(tmp_path)
    sent = []
    one = mirror(tmp_path, url)
    pipe = one._store.pipe_file
    monkeypatch.setattr(one._store, "pipe_file", lambda name, data: (sent.append(name), pipe(name, data)))
    one.send()
    assert len(sent) == 3
    one.send()
    assert len(sent) == 3
    with open(tmp_path / JOURNAL, "a") as journal:
        journal.write("two\n")
    checkpoint(tmp_path, 2)
    shutil.rmtree(tmp_path / "checkpoints" / "step-000001")
    resumed = mirror(tmp_path, url)  # of a resumed process
    resumed.begin(resume=True)
    resumed.send()
    assert stored_objects(url)[JOURNAL] == b"one\ntwo\n"
    assert [name for name in names(url) if name.endswith("model")] == ["checkpoints/step-000002/model"]


def test_referenced_files_are_uploaded_before_their_references(tmp_path, url, monkeypatch):
    """Store a group and finish an update during an upload: no uploaded file refers to a missing one."""
    small_run(tmp_path)
    one, order = mirror(tmp_path, url), []
    pipe, put = one._store.pipe_file, one._store.put_file

    def piped(name, data):
        order.append(name[len(one._root) + 1 :])
        if len(order) == 1:  # during the upload
            write_run(tmp_path, trajectories__b="2")
            with open(tmp_path / JOURNAL, "a") as journal:
                journal.write("two, in trajectories/b\n")
            checkpoint(tmp_path, 2)
        pipe(name, data)

    monkeypatch.setattr(one._store, "pipe_file", piped)
    monkeypatch.setattr(
        one._store, "put_file", lambda source, name: (order.append(name[len(one._root) + 1 :]), put(source, name))
    )
    one.send()
    assert stored_objects(url)[JOURNAL] == b"one\n"
    assert not any("step-000002" in name for name in names(url))
    assert order.index("trajectories/a") < order.index(JOURNAL) < order.index("checkpoints/step-000001/model")
    assert order[-1] == "checkpoints/step-000001/trainer/checksums.json"
    one.send()
    assert b"two" in stored_objects(url)[JOURNAL]
    assert "trajectories/b" in names(url)


def test_mirror_of_another_run_is_neither_overwritten_nor_resumed(tmp_path, url):
    small_run(tmp_path / "run")
    mirror(tmp_path / "run", url).send()
    with pytest.raises(RunDirectoryError, match="holds a run already; add --resume"):
        mirror(tmp_path / "new", url).begin(resume=False)
    mirror(tmp_path / "run", url).begin(resume=True)
    write_run(tmp_path / "run", store__journal_dot_jsonl="")
    with pytest.raises(RunDirectoryError, match=f"{JOURNAL} is further than the one in .* choose an empty --run-dir"):
        mirror(tmp_path / "run", url).begin(resume=True)
    write_run(tmp_path / "run", store__journal_dot_jsonl="other\n")
    with pytest.raises(RunDirectoryError, match=f"{JOURNAL} is of another run"):
        mirror(tmp_path / "run", url).begin(resume=True)
    write_run(tmp_path / "run", recipe_dot_yaml="seed: 2")
    with pytest.raises(RunDirectoryError, match="holds another run than"):
        mirror(tmp_path / "run", url).begin(resume=True)
    write_run(tmp_path / "full", notes="mine")
    with pytest.raises(RunDirectoryError, match=r"is not empty and holds no run \(notes is in it\)"):
        mirror(tmp_path / "full", url).begin(resume=True)


def test_run_whose_recipe_changed_before_an_upload_is_the_same_run(tmp_path, url):
    small_run(tmp_path / "run")
    write_run(tmp_path / "run", recipe_dot_yaml="seed: 0\nreinforcement: {steps: 2}\n")
    mirror(tmp_path / "run", url).send()
    changed = "seed: 0\nreinforcement: {steps: 4, learning_rate: 1.0e-05}\n"
    write_run(tmp_path / "run", recipe_dot_yaml=changed)
    mirror(tmp_path / "run", url).begin(resume=True)
    assert (tmp_path / "run" / "recipe.yaml").read_text() == changed


def test_read_only_store_is_refused_before_the_run_starts(tmp_path, monkeypatch, url):
    def full(self, path, data, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    resolved = load_recipe("demo", [f"scale.mirror_url={url}"])
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "pipe_file", full)
    with pytest.raises(RecipeError, match=r"scale\.mirror_url: nothing can be written to memory://.*No space left"):
        open_mirror(resolved, tmp_path, resume=False)
    with pytest.raises(RecipeError, match=r"scale\.mirror_url: nothing can be written to nosuch://a: ValueError"):
        open_mirror(load_recipe("demo", ["scale.mirror_url=nosuch://a"]), tmp_path, resume=False)
    with pytest.raises(RecipeError, match=r"scale\.mirror_interval_seconds: has no effect: scale\.mirror_url is null"):
        load_recipe("demo", ["scale.mirror_interval_seconds=5"])


def test_object_name_outside_of_the_run_directory_is_refused(tmp_path, url):
    small_run(tmp_path / "run")
    one = mirror(tmp_path / "run", url)
    one.send()
    store, root = fsspec.core.url_to_fs(url)
    store.store[f"{root}/../evil"] = store.store[f"{root}/{RECIPE}"]
    try:
        with pytest.raises(RunDirectoryError, match=r"the path \.\./evil leads out of"):
            mirror(tmp_path / "new", url).begin(resume=True)
    finally:
        del store.store[f"{root}/../evil"]
    assert not (tmp_path / "evil").exists()


class FailingStore:
    """A store that fails after a number of writes."""

    def __init__(self, store, left):
        self.store, self.left = store, left

    def __getattr__(self, name):
        return getattr(self.store, name)

    def _count(self):
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    def pipe_file(self, *arguments):
        self._count()
        self.store.pipe_file(*arguments)

    def put_file(self, *arguments):
        self._count()
        self.store.put_file(*arguments)


def run_until_message(mirror, messages):
    """Run until a message is reported."""
    with mirror.upload_periodically():
        while not messages:
            time.sleep(0.002)


def test_upload_failure_is_reported_and_fails_only_the_end(tmp_path, url):
    small_run(tmp_path)
    messages = []
    one = Mirror(tmp_path, url, seconds=0.005, log=messages.append)
    one._store = FailingStore(one._store, 1)
    with pytest.raises(
        SaveError, match=r"some files could not be uploaded: ConnectionResetError: .*--resume uploads the rest"
    ):
        run_until_message(one, messages)
    assert len(messages) == 1
    assert "the upload is repeated every 0.005 s" in messages[0]
    one._store.left = 99
    one.send()
    assert len(names(url)) == 5


def trained(overrides, run_dir, *, resume=False, until=None):
    """Train, until a step at which the process dies."""

    def fail_at_step(row):
        if until is not None and row["stage"] == "reinforcement" and row["step"] == until:
            raise LostMachine

    train(
        load_recipe("demo", overrides), run_dir, resume=resume, on_metrics=fail_at_step, progress=Progress(quiet=True)
    )


class LostMachine(Exception):
    """A machine is lost with its files."""


def resume_and_compare(folder, overrides, url):
    """Resume a lost run from the store and compare its weights with those of the undisturbed run `alone`."""
    shutil.rmtree(folder / "lost")
    trained([*overrides, f"scale.mirror_url={url}"], folder / "elsewhere", resume=True)
    crash.check_accounting(folder / "elsewhere")
    alone, elsewhere = crash.load_weights(folder / "alone"), crash.load_weights(folder / "elsewhere")
    assert all(torch.equal(alone[name], elsewhere[name]) for name in alone)


@pytest.mark.slow
@pytest.mark.parametrize("writes", [5, 14, 23, 34, 55])
def test_lost_machine_is_resumed_from_the_store(tmp_path, url, speaking_policy, monkeypatch, writes):
    """Let the store fail at some write; resume on another machine from the objects uploaded by then."""
    plain = crash.build_overrides("one step off, by recipe", speaking_policy)
    trained(plain, tmp_path / "alone")
    with monkeypatch.context() as patched:
        create = Mirror.__init__

        def failing(self, *arguments, **more):
            create(self, *arguments, **more)
            self._store = FailingStore(self._store, writes + 1)  # the first is the write check

        patched.setattr(Mirror, "__init__", failing)
        with pytest.raises(LostMachine):
            trained(
                [*plain, f"scale.mirror_url={url}", "scale.mirror_interval_seconds=0.02"], tmp_path / "lost", until=5
            )
    resume_and_compare(tmp_path, plain, url)
    assert "summary.json" in names(url)


@pytest.mark.slow
def test_run_resumes_from_an_s3_store(tmp_path, speaking_policy, monkeypatch):
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 's3fs>=2025.3'")
    pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]>=5'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None
            time.sleep(0.1)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
        url = "s3://bucket/runs/one"
        plain = crash.build_overrides("synchronous", speaking_policy)
        trained(plain, tmp_path / "alone")
        with pytest.raises(LostMachine):
            trained(
                [*plain, f"scale.mirror_url={url}", "scale.mirror_interval_seconds=0.5"], tmp_path / "lost", until=4
            )
        resume_and_compare(tmp_path, plain, url)
    finally:
        server.kill()
        server.wait()
