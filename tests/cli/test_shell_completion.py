"""Shell completion of commands, recipes, keys, values, runs and trajectories."""

import json
import subprocess
import sys

import click
import pytest

from support.cli import whetstone
from whetstone.cli import shell_completion
from whetstone.cli.completion import VARIABLE
from whetstone.cli.main import cli


class Context:
    """The arguments before the completed word."""

    def __init__(self, **params):
        self.params = params


def values(items):
    return [item.value for item in items]


def keys(typed):
    return values(shell_completion.complete_overrides(Context(), None, typed))


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "demo"
    (run / "trajectories").mkdir(parents=True)
    (run / "recipe.yaml").write_text("seed: 0\n")
    lines = [json.dumps({"id": f"group-{k}/a b#0"}) for k in range(3)]
    (run / "trajectories" / "step-000001.jsonl").write_text("\n".join([*lines, '{"id": "half']))
    (tmp_path / "shop.yaml").write_text("seed: 0\n")
    (tmp_path / "notes.txt").write_text("")
    return tmp_path


def test_recipes_methods_and_files_are_completed(runs):
    assert values(shell_completion.complete_recipes(Context(), None, "dem")) == ["demo"]
    assert "dapo" in values(shell_completion.complete_recipes(Context(), None, "da"))
    assert values(shell_completion.complete_recipes(Context(), None, "sho")) == ["shop.yaml"]
    assert "notes.txt" not in values(shell_completion.complete_recipes(Context(), None, ""))


def test_runs_and_their_parent_folders_are_completed(runs):
    assert values(shell_completion.run_folders(Context(), None, "ru")) == ["runs/"]
    assert values(shell_completion.run_folders(Context(), None, "runs/")) == ["runs/demo"]
    assert values(shell_completion.run_folders(Context(), None, "runs/de")) == ["runs/demo"]
    assert values(shell_completion.run_folders(Context(), None, "nothere/x")) == []


def test_keys_are_completed_level_by_level():
    assert keys("reinf") == ["reinforcement."]
    assert "reinforcement.learning_rate=" in keys("reinforcement.")
    assert keys("reinforcement.learning_r") == ["reinforcement.learning_rate="]
    assert keys("seed") == ["seed="]
    assert keys("nothing_like_it") == []


def test_values_of_a_key_are_completed():
    assert keys("policy.dtype=b") == ["policy.dtype=bfloat16"]
    assert keys("policy.trust_remote_code=") == ["policy.trust_remote_code=true", "policy.trust_remote_code=false"]
    assert "with=gigpo" in keys("with=g")
    assert keys("seed=") == []


def test_trajectories_of_the_named_run_are_completed(runs):
    run = Context(run_dir=runs / "runs" / "demo")
    assert values(shell_completion.trajectory_ids(run, None, "group-1")) == ["group-1/a b#0"]
    assert len(shell_completion.trajectory_ids(run, None, "")) == 3


def test_command_prints_the_script_of_each_shell():
    for shell in ("bash", "zsh", "fish"):
        done = whetstone("completion", shell)
        assert done.returncode == 0, done.stderr
        assert f"{VARIABLE}={shell}_complete" in done.stdout
    assert whetstone("completion", "tcsh").returncode == 2


@pytest.mark.slow
def test_completion_imports_no_heavy_package(monkeypatch, runs):
    code = "import sys; sys.argv=['whetstone']; from whetstone.cli.main import main\ntry: main()\nfinally: "
    code += "print(*(m for m in ('torch', 'transformers') if m in sys.modules))"
    for typed, offered in (("whetstone tra", "plain,train"), ("whetstone train dem", "plain,demo"),
                           ("whetstone show runs/", "plain,runs/demo")):  # fmt: skip
        words = typed.split()
        environment = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1), VARIABLE: "bash_complete"}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert offered in done.stdout.splitlines(), done.stderr
        assert "torch" not in done.stdout


def test_options_are_completed_together_with_commands():

    offered = values(cli.shell_complete(click.Context(cli), "--"))
    assert "--version" in offered
