"""`whetstone push`: uploads of models, trajectories and environments to a local hub, and refusals in one line."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import constants, snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.cli import whetstone
from support.endpoint import served
from support.small import SMALL
from support.writable_hub import run_hub
from whetstone.policies import build_tiny, load_policy, save_policy
from whetstone.policies.hub_upload import HubTarget
from whetstone.reporting.charts import CurvePanel, plot_panels
from whetstone.reporting.model_card import license_lines
from whetstone.training.publishing import ENVIRONMENT_TAG, search_secrets

KEY = "AKIA" + "QYLPMN5HFIQR7XYA"
"""The form of a key of a provider."""

STORED_RUN = Path(__file__).parents[1] / "data" / "run_9e27b57" / "run"


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """Run a hub, and log in with a token that may write."""
    with run_hub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        address = f"{running.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_writer")
        yield running


@pytest.fixture
def model(tmp_path):
    """A model folder."""
    (tmp_path / "model").mkdir()
    save_policy(build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def environment(tmp_path):
    """The template of an environment, with a data file and files that are not part of it."""
    folder = tmp_path / "walk"
    assert whetstone("new", "environment", folder).returncode == 0
    keys = yaml.safe_load((folder / "recipe.yaml").read_text())
    keys["supervised"]["data"] = {"path": "shown.jsonl"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(keys))
    (folder / "shown.jsonl").write_text('{"messages": []}\n')
    (folder / ".env").write_text(f"KEY={KEY}\n")
    (folder / "notes.txt").write_text(KEY)
    return folder


def last_line(done):
    assert done.returncode == 2, done.stdout
    return done.stderr.strip().splitlines()[-1]


def test_files_of_the_model_are_listed_and_then_uploaded_in_one_commit(hub, model):
    done = whetstone("push", model, "tester/small", "--license", "apache-2.0")
    assert done.returncode == 0, done.stderr
    repository = hub.repositories["model", "tester/small"]
    assert repository.private
    assert len(repository.commits) == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"tester/small (private model, new): {len(repository.files)} files, ")
    listed = {line.split()[2] for line in lines[1 : 1 + len(repository.files)]}
    assert listed == set(repository.files)
    assert lines[-1] == f"uploaded: {hub.address}/tester/small/commit/{repository.commit}"
    card = repository.files["README.md"].decode()
    assert yaml.safe_load(card.split("---")[1])["license"] == "apache-2.0"
    assert "hf download tester/small --local-dir FOLDER" in card


def test_pushed_weights_are_those_of_the_model_in_its_precision(hub, model, tmp_path):
    assert whetstone("push", model, "tester/small").returncode == 0
    folder = snapshot_download("tester/small", cache_dir=tmp_path / "cache")
    assert len(Path(folder).name) == 40  # a commit, which `policy.revision` pins
    pulled, stored = AutoModelForCausalLM.from_pretrained(folder, dtype="auto"), load_policy(model).model
    assert all(torch.equal(a, b) for a, b in zip(pulled.parameters(), stored.parameters(), strict=True))
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert hub.repositories["model", "tester/small"].commit == Path(folder).name


@pytest.mark.slow
def test_second_push_replaces_files_and_deletes_weights_of_another_kind(hub, model):
    assert whetstone("push", model, "tester/small").returncode == 0
    repository = hub.repositories["model", "tester/small"]
    repository.files |= {"adapter_config.json": b"{}", "base/model.safetensors": b"x", "notes.md": b"mine"}
    done = whetstone("push", model, "tester/small", "--license", "mit")
    assert done.returncode == 0, done.stderr
    assert "deletes  adapter_config.json" in done.stdout
    assert "README.md  replaces the file there" in done.stdout
    assert repository.files["notes.md"] == b"mine"
    assert not {"adapter_config.json", "base/model.safetensors"} & set(repository.files)
    assert b"license: mit" in repository.files["README.md"]


def test_dry_run_lists_files_without_a_request(hub, model, tmp_path):
    done = whetstone("push", model, "tester/small", "--dry-run", "--output-dir", tmp_path / "kept")
    assert done.returncode == 0, done.stderr
    assert hub.requests == []
    assert "model.safetensors" in done.stdout
    assert done.stdout.endswith("nothing was uploaded (--dry-run)\n")
    assert {path.name for path in (tmp_path / "kept").iterdir()} >= {"README.md", "model.safetensors", "chat.json"}


@pytest.mark.parametrize(
    ("token", "name", "message"),
    [
        ("hf_reader", "tester/small", "the token of tester may only read the Hugging Face hub"),
        ("hf_nobody", "tester/small", "the Hugging Face hub does not accept the token; log in again"),
        ("hf_fine", "tester/small", "the token may not write to this repository"),
        ("hf_writer", "others/small", "the token may not write to this repository"),
        ("hf_broken", "tester/small", "refused the upload (status 500: Internal error of the hub)"),
        ("", "tester/small", "there is no token for the Hugging Face hub; log in (`hf auth login`)"),
        ("hf_writer", "small", "not a name of a repository on the Hugging Face hub; write OWNER/NAME"),
    ],
)
def test_refusal_of_the_hub_is_one_line_and_nothing_is_lost(hub, model, tmp_path, monkeypatch, token, name, message):
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr("huggingface_hub.utils._http.DEFAULT_RETRY_BASE_WAIT", 0, raising=False)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    line = last_line(whetstone("push", model, name, "--output-dir", tmp_path / "kept"))
    assert line.startswith(f"whetstone: {name}: ")
    assert message in line
    assert all(not repository.files for repository in hub.repositories.values())
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_unreachable_hub_is_one_line(model, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    line = last_line(whetstone("push", model, "tester/small"))
    assert "tester/small: the Hugging Face hub cannot be reached" in line
    assert "nothing was uploaded, and nothing here has changed; try again" in line


@pytest.mark.slow
def test_public_repository_needs_an_option(hub, model):
    assert whetstone("push", model, "tester/small", "--public").returncode == 0
    repository = hub.repositories["model", "tester/small"]
    assert not repository.private
    assert "is a public repository" in last_line(whetstone("push", model, "tester/small"))
    assert len(repository.commits) == 1


def test_secret_ends_the_push_before_the_upload(hub, model):
    template = model / "chat_template.jinja"
    template.write_text(f"{{# {KEY} #}}{template.read_text()}")
    done = whetstone("push", model, "tester/small")
    line = last_line(done)
    assert ": contains a secret (AWS access key)" in line
    assert line.startswith("whetstone: chat_template.jinja:")
    assert KEY not in done.stdout + done.stderr
    assert hub.repositories == {}


@pytest.mark.slow
def test_environment_is_uploaded_with_its_files_only_and_with_the_tag(hub, environment, tmp_path):
    done = whetstone("push", environment, "tester/walk", "--as", "environment")
    assert done.returncode == 0, done.stderr
    files = hub.repositories["dataset", "tester/walk"].files
    assert set(files) == {"README.md", "recipe.yaml", "shown.jsonl", "walk_environment.py"}
    header = yaml.safe_load(files["README.md"].decode().split("---")[1])
    assert ENVIRONMENT_TAG in header["tags"]
    folder = snapshot_download("tester/walk", repo_type="dataset", local_dir=tmp_path / "pulled")
    rolled_out = whetstone("rollout", "recipe.yaml", "-n", "1", "supervised=null", *SMALL[:4], cwd=folder)
    assert rolled_out.returncode == 0, rolled_out.stderr


def test_environment_that_is_not_complete_or_has_a_secret_is_refused(hub, environment, tmp_path):
    recipe = environment / "recipe.yaml"
    keys = yaml.safe_load(recipe.read_text())
    (tmp_path / "else.jsonl").write_text("{}\n")
    for path, message in (
        ("../else.jsonl", "outside of the folder of the recipe; move it into"),
        (str(tmp_path / "else.jsonl"), "supervised.data.path is an absolute path"),
    ):
        recipe.write_text(yaml.safe_dump(keys | {"supervised": {"data": {"path": path}}}))
        assert message in last_line(whetstone("push", environment, "tester/walk", "--as", "environment"))
    tracker = {"name": "mlflow", "url": "http://tester:s3cr3t-value-9@127.0.0.1:9"}
    recipe.write_text(yaml.safe_dump(keys | {"trackers": [tracker], "supervised": {"steps": 2}}))
    done = whetstone("push", recipe, "tester/walk", "--as", "environment")
    assert "contains a secret (secret of a recipe)" in last_line(done)
    assert "s3cr3t" not in done.stdout + done.stderr
    assert hub.repositories == {}


@pytest.mark.slow
def test_trajectories_are_rows_with_conversation_and_reward(hub, monkeypatch, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(STORED_RUN, run)
    done = whetstone("push", run, "tester/played", "--as", "trajectories", "--license", "cc-by-4.0")
    assert done.returncode == 0, done.stderr
    files = hub.repositories["dataset", "tester/played"].files
    rows = [json.loads(line) for line in files["trajectories.jsonl"].splitlines()]
    stored = [json.loads(line) for path in sorted(run.rglob("trajectories/step-*.jsonl")) for line in path.open()]
    scored = [row for row in stored if row["score"] is not None]
    assert [row["id"] for row in rows] == [row["id"] for row in scored]
    assert [row["reward"] for row in rows] == [row["score"]["value"] for row in scored]
    assert [row["messages"] for row in rows] == [row["messages"] for row in scored]
    header = yaml.safe_load(files["README.md"].decode().split("---")[1])
    assert header["license"] == "cc-by-4.0"
    assert header["configs"] == [{"config_name": "default", "data_files": "trajectories.jsonl"}]
    assert ENVIRONMENT_TAG not in header["tags"]
    path = next(run.rglob("trajectories/step-*.jsonl"))
    path.write_text(
        path.read_text()
        .replace('"content": "', f'"content": "{KEY} ', 1)
        .replace('"content":"', f'"content":"{KEY} ', 1)
    )
    line = last_line(whetstone("push", run, "tester/played", "--as", "trajectories"))
    assert "trajectories.jsonl:1: contains a secret" in line
    assert "add --redact, which replaces secrets and personal data" in line
    monkeypatch.setattr("whetstone.data.sensitive.missing_package", lambda: False)
    done = whetstone("push", run, "tester/played", "--as", "trajectories", "--redact")
    assert done.returncode == 0, done.stderr
    assert KEY.encode() not in files["trajectories.jsonl"]


def test_curves_are_the_same_image_for_the_same_values():
    panel = CurvePanel({"reward": ([1, 2, 3], [0.1, 0.4, 0.5])}, "step", True, "Mean reward.")
    image = plot_panels([panel, panel])
    assert image.startswith(b"\x89PNG")
    assert image == plot_panels([panel, panel])


@pytest.mark.slow
def test_pulled_run_has_the_same_score_in_transformers_and_in_evaluate(hub, tmp_path, monkeypatch):
    assert whetstone("new", "environment", tmp_path / "walk").returncode == 0
    folder = tmp_path / "walk"
    short = [*SMALL, "policy.tiny.hidden_size=64", "supervised.steps=24", "supervised.batch_size=16",
             "reinforcement.steps=1", "evaluation.episodes=17", "evaluation.temperature=0"]  # fmt: skip
    done = whetstone("train", "recipe.yaml", *short, "--run-dir", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert whetstone("push", "run", "tester/walker", cwd=folder).returncode == 0
    files = hub.repositories["model", "tester/walker"].files
    for part in ("![Curves of the training](curves.png)", "with 95 % intervals", "## Recipe", "weights: float32"):
        assert part in files["README.md"].decode(), part
    assert files["curves.png"].startswith(b"\x89PNG")
    scores = {}
    for name, words in (
        ("trained", []),
        ("pulled", ["--policy", "tester/walker"]),
        ("pulled at a commit", ["--policy", f"tester/walker@{hub.repositories['model', 'tester/walker'].commit}"]),
    ):
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / name))
        done = whetstone("evaluate", "run", *words, "--json", cwd=folder)
        assert done.returncode == 0, done.stderr
        scores[name] = json.loads(done.stdout)
    pulled = snapshot_download("tester/walker", cache_dir=tmp_path / "plain")
    tokenizer, model = AutoTokenizer.from_pretrained(pulled), AutoModelForCausalLM.from_pretrained(pulled, dtype="auto")

    def answer(_, body):
        """Generate an answer with plain Transformers, as on the card of the model."""
        inputs = tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        output = model.generate(**inputs, max_new_tokens=body["max_tokens"], do_sample=False)
        return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    with served(answer) as server:
        words = ["--policy", server.url, "--model", "plain", "rollout.max_in_flight=1"]
        done = whetstone("evaluate", "run", *words, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    scores["plain Transformers"] = json.loads(done.stdout)
    assert 0 < scores["trained"]["success"] < 1
    assert {name: (each["success"], each["interval"]) for name, each in scores.items()} == dict.fromkeys(
        scores, (scores["trained"]["success"], scores["trained"]["interval"])
    )


def test_options_without_effect_are_refused(model):
    for words, message in (
        (["--as", "trajectories", "--merged"], "--merged: has no effect with --as trajectories"),
        (["--as", "environment", "--dtype", "float32"], "--dtype: has no effect with --as environment"),
        (["--redact"], "--redact: replaces texts of trajectories"),
        (["--merged", "--adapter"], "--adapter: cannot be combined with --merged"),
    ):
        assert message in last_line(whetstone("push", model, "tester/small", *words))


def test_secrets_are_found_with_file_and_line_and_personal_data_is_counted(tmp_path):
    (tmp_path / "recipe.yaml").write_text("judge:\n  api_key: s3cr3t-value-9\n  url: http://x\n")
    (tmp_path / "rows.jsonl").write_text(f'{{"a": 1}}\n{{"mail": "ann@example.org"}}\n{{"key": "{KEY}"}}\n')
    (tmp_path / "model.safetensors").write_bytes(KEY.encode())
    search = search_secrets(tmp_path)
    assert [(name, line) for name, line, _ in search.secrets] == [("recipe.yaml", 2), ("rows.jsonl", 3)]
    assert (search.texts, dict(search.personal)) == (2, {"e-mail address": 1})


def test_license_that_the_hub_does_not_know_is_named_as_other():
    assert license_lines("Apache-2.0") == ["license: apache-2.0"]
    assert license_lines("Model License v2") == ["license: other", 'license_name: "model-license-v2"']
    assert license_lines("") == []


def test_only_weights_of_an_earlier_model_are_deleted():
    files = ("README.md", "adapter_config.json", "base/config.json", "model.safetensors", "notes.md")
    target = HubTarget("a/b", "model", "a", exists=True, private=True, files=files)
    assert target.removed_files(["README.md", "model.safetensors"]) == ("adapter_config.json", "base/config.json")
    assert HubTarget("a/b", "dataset", "a", True, True, files).removed_files([]) == ()
