"""What is in a store of objects is at any moment what a kill could have left, and another machine goes on from it."""

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
from whetstone.record.mirror import Mirror, mirror_of
from whetstone.reporting import Progress
from whetstone.training import train

RECIPE, JOURNAL = "recipe.yaml", "store/journal.jsonl"


@pytest.fixture
def url():
    """A folder of its own in memory."""
    name = f"memory://{uuid.uuid4().hex}/run"
    yield name
    store, root = fsspec.core.url_to_fs(name)
    if store.exists(root):
        store.rm(root, recursive=True)


def there(url):
    """What is in a store: name → content."""
    store, root = fsspec.core.url_to_fs(url)
    return {name[len(root) + 1 :]: store.cat_file(name) for name in store.find(root)}


def written(folder, **files):
    """Files of a run, `__` for a slash."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def small_run(folder):
    written(
        folder,
        recipe_dot_yaml="seed: 1",
        _dot_lock="",
        store__journal_dot_jsonl="one\n",
        trajectories__a="1",
    )
    checkpoint(folder, 1)


def checkpoint(folder, step, content="w"):
    path = folder / "checkpoints" / f"step-{step:06d}"
    written(path, model=content, trainer__checksums_dot_json="{}")


def mirror(folder, url, said=None):
    return Mirror(folder, url, seconds=60, say=(said if said is not None else []).append)


def names(url):
    return sorted(there(url))


def test_all_but_what_is_half_written_is_sent_and_fetched_as_it_was(tmp_path, url):
    small_run(tmp_path / "run")
    written(tmp_path / "run", store___dot_turns_dot_partial="x", checkpoints___dot_step_dot_partial__model="x")
    with mirror(tmp_path / "run", url).kept():
        pass
    assert names(url) == [
        "checkpoints/step-000001/model",
        "checkpoints/step-000001/trainer/checksums.json",
        RECIPE,
        JOURNAL,
        "trajectories/a",
    ]
    said = []
    mirror(tmp_path / "other", url, said).begin(resume=True)
    assert said == [f"{tmp_path / 'other'}: fetched from {url}"]
    assert {p.relative_to(tmp_path / "other").as_posix() for p in (tmp_path / "other").rglob("*") if p.is_file()} == {
        *names(url)
    }


def test_a_stage_that_is_a_link_to_another_run_is_sent_whole(tmp_path, url):
    small_run(tmp_path / "other" / "stages" / "1-supervised")
    written(tmp_path / "run", recipe_dot_yaml="seed: 2")
    (tmp_path / "run" / "stages").mkdir()
    (tmp_path / "run" / "stages" / "1-supervised").symlink_to("../../other/stages/1-supervised")
    mirror(tmp_path / "run", url).send()
    assert there(url)[f"stages/1-supervised/{JOURNAL}"] == b"one\n"
    assert there(url)["stages/1-supervised/checkpoints/step-000001/model"] == b"w"


def test_only_what_is_new_is_sent_and_a_checkpoint_that_is_deleted_here_goes_there(tmp_path, url, monkeypatch):
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
    again = mirror(tmp_path, url)  # of a process that goes on
    again.begin(resume=True)
    again.send()
    assert there(url)[JOURNAL] == b"one\ntwo\n"
    assert [name for name in names(url) if name.endswith("model")] == ["checkpoints/step-000002/model"]


def test_what_is_named_is_there_before_what_names_it(tmp_path, url, monkeypatch):
    """While it is sent, a group is kept and an update made: nothing that is sent may know of what is not there."""
    small_run(tmp_path)
    one, order = mirror(tmp_path, url), []
    pipe, put = one._store.pipe_file, one._store.put_file

    def piped(name, data):
        order.append(name[len(one._root) + 1 :])
        if len(order) == 1:  # meanwhile
            written(tmp_path, trajectories__b="2")
            with open(tmp_path / JOURNAL, "a") as journal:
                journal.write("two, in trajectories/b\n")
            checkpoint(tmp_path, 2)
        pipe(name, data)

    monkeypatch.setattr(one._store, "pipe_file", piped)
    monkeypatch.setattr(
        one._store, "put_file", lambda here, name: (order.append(name[len(one._root) + 1 :]), put(here, name))
    )
    one.send()
    assert there(url)[JOURNAL] == b"one\n"
    assert not any("step-000002" in name for name in names(url))
    assert order.index("trajectories/a") < order.index(JOURNAL) < order.index("checkpoints/step-000001/model")
    assert order[-1] == "checkpoints/step-000001/trainer/checksums.json"
    one.send()
    assert b"two" in there(url)[JOURNAL]
    assert "trajectories/b" in names(url)


def test_another_run_is_neither_overwritten_nor_gone_on_with(tmp_path, url):
    small_run(tmp_path / "run")
    mirror(tmp_path / "run", url).send()
    with pytest.raises(RunDirectoryError, match="holds a run already; add --resume"):
        mirror(tmp_path / "new", url).begin(resume=False)
    mirror(tmp_path / "run", url).begin(resume=True)
    written(tmp_path / "run", store__journal_dot_jsonl="")
    with pytest.raises(RunDirectoryError, match=f"{JOURNAL} is further than the one in .* choose an empty --run-dir"):
        mirror(tmp_path / "run", url).begin(resume=True)
    written(tmp_path / "run", store__journal_dot_jsonl="other\n")
    with pytest.raises(RunDirectoryError, match=f"{JOURNAL} is of another run"):
        mirror(tmp_path / "run", url).begin(resume=True)
    written(tmp_path / "run", recipe_dot_yaml="seed: 2")
    with pytest.raises(RunDirectoryError, match="holds another run than"):
        mirror(tmp_path / "run", url).begin(resume=True)
    written(tmp_path / "full", notes="mine")
    with pytest.raises(RunDirectoryError, match=r"is not empty and holds no run \(notes is in it\)"):
        mirror(tmp_path / "full", url).begin(resume=True)


def test_a_run_whose_recipe_changed_before_it_was_sent_is_the_same_run(tmp_path, url):
    small_run(tmp_path / "run")
    written(tmp_path / "run", recipe_dot_yaml="seed: 0\nreinforcement: {steps: 2}\n")
    mirror(tmp_path / "run", url).send()
    changed = "seed: 0\nreinforcement: {steps: 4, learning_rate: 1.0e-05}\n"
    written(tmp_path / "run", recipe_dot_yaml=changed)
    mirror(tmp_path / "run", url).begin(resume=True)
    assert (tmp_path / "run" / "recipe.yaml").read_text() == changed


def test_a_store_that_cannot_be_written_is_refused_before_anything_begins(tmp_path, monkeypatch, url):
    def full(self, path, data, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    resolved = load_recipe("demo", [f"scale.mirror_url={url}"])
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "pipe_file", full)
    with pytest.raises(RecipeError, match=r"scale\.mirror_url: nothing can be written to memory://.*No space left"):
        mirror_of(resolved, tmp_path, resume=False)
    with pytest.raises(RecipeError, match=r"scale\.mirror_url: nothing can be written to nosuch://a: ValueError"):
        mirror_of(load_recipe("demo", ["scale.mirror_url=nosuch://a"]), tmp_path, resume=False)
    with pytest.raises(RecipeError, match=r"scale\.mirror_interval_seconds: has no effect: scale\.mirror_url is null"):
        load_recipe("demo", ["scale.mirror_interval_seconds=5"])


def test_a_name_that_leads_out_of_the_run_directory_is_refused(tmp_path, url):
    small_run(tmp_path / "run")
    one = mirror(tmp_path / "run", url)
    one.send()
    store, root = fsspec.core.url_to_fs(url)
    store.store[f"{root}/../evil"] = store.store[f"{root}/{RECIPE}"]
    try:
        with pytest.raises(RunDirectoryError, match=r"\.\./evil would lie outside"):
            mirror(tmp_path / "new", url).begin(resume=True)
    finally:
        del store.store[f"{root}/../evil"]
    assert not (tmp_path / "evil").exists()


class Failing:
    """A store that takes so many more writes."""

    def __init__(self, store, left):
        self.store, self.left = store, left

    def __getattr__(self, name):
        return getattr(self.store, name)

    def _count(self):
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    def pipe_file(self, *given):
        self._count()
        self.store.pipe_file(*given)

    def put_file(self, *given):
        self._count()
        self.store.put_file(*given)


def play(mirror, said):
    """A run that goes on until something was said."""
    with mirror.kept():
        while not said:
            time.sleep(0.002)


def test_a_store_that_fails_meanwhile_is_told_of_and_fails_the_end_alone(tmp_path, url):
    small_run(tmp_path)
    said = []
    one = Mirror(tmp_path, url, seconds=0.005, say=said.append)
    one._store = Failing(one._store, 1)
    with pytest.raises(
        SaveError, match=r"not everything could be sent: ConnectionResetError: .*--resume sends the rest"
    ):
        play(one, said)
    assert len(said) == 1
    assert "it is tried again every 0.005 s" in said[0]
    one._store.left = 99
    one.send()
    assert len(names(url)) == 5


def trained(overrides, run_dir, *, resume=False, until=None):
    """Train; until a step, at which the process is gone."""

    def gone(row):
        if until is not None and row["stage"] == "reinforcement" and row["step"] == until:
            raise Lost

    train(load_recipe("demo", overrides), run_dir, resume=resume, on_metrics=gone, progress=Progress(quiet=True))


class Lost(Exception):
    """A machine with all its files."""


def goes_on_to_the_same(folder, overrides, url):
    """A run whose files are lost goes on from the store to the weights of the one that was left `alone`."""
    shutil.rmtree(folder / "lost")
    trained([*overrides, f"scale.mirror_url={url}"], folder / "elsewhere", resume=True)
    crash.accounted(folder / "elsewhere")
    alone, elsewhere = crash.weights(folder / "alone"), crash.weights(folder / "elsewhere")
    assert all(torch.equal(alone[name], elsewhere[name]) for name in alone)


@pytest.mark.slow
@pytest.mark.parametrize("writes", [5, 14, 23, 34, 55])
def test_a_machine_that_is_lost_with_its_files_is_gone_on_with_from_the_store(
    tmp_path, url, speaking_policy, monkeypatch, writes
):
    """The store fails at some write, wherever that is; what it has by then is gone on with on another machine."""
    plain = crash.overrides_of("one step off, by recipe", speaking_policy)
    trained(plain, tmp_path / "alone")
    with monkeypatch.context() as patched:
        made = Mirror.__init__

        def failing(self, *given, **more):
            made(self, *given, **more)
            self._store = Failing(self._store, writes + 1)  # the first tries whether it can be written to

        patched.setattr(Mirror, "__init__", failing)
        with pytest.raises(Lost):
            trained(
                [*plain, f"scale.mirror_url={url}", "scale.mirror_interval_seconds=0.02"], tmp_path / "lost", until=5
            )
    goes_on_to_the_same(tmp_path, plain, url)
    assert "summary.json" in names(url)


@pytest.mark.slow
def test_a_run_goes_on_from_a_store_that_speaks_s3(tmp_path, speaking_policy, monkeypatch):
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
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None
            time.sleep(0.1)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
        url = "s3://bucket/runs/one"
        plain = crash.overrides_of("synchronous", speaking_policy)
        trained(plain, tmp_path / "alone")
        with pytest.raises(Lost):
            trained(
                [*plain, f"scale.mirror_url={url}", "scale.mirror_interval_seconds=0.5"], tmp_path / "lost", until=4
            )
        goes_on_to_the_same(tmp_path, plain, url)
    finally:
        server.kill()
        server.wait()
