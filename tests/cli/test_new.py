"""`whetstone new`: the written project runs unchanged with its tests, and existing files are not overwritten."""

import json
import os
import subprocess
import sys

import pytest

from support.cli import whetstone
from whetstone.cli.new import KINDS, render_template

SMALL = [
    "policy.tiny.hidden_size=16",
    "policy.tiny.num_layers=1",
    "policy.tiny.intermediate_size=16",
    "policy.tiny.num_heads=2",
    "supervised.steps=2",
    "rollout.group_size=2",
    "reinforcement.steps=2",
    "reinforcement.tasks_per_step=2",
    "evaluation.episodes=4",
]


def test_files_are_named_after_the_folder(tmp_path):
    done = whetstone("new", "tool", "shop", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = sorted(path.name for path in (tmp_path / "shop").iterdir())
    assert written == ["README.md", "recipe.yaml", "shop_tools.py", "test_shop_tools.py"]
    assert "shop_tools:compute" in (tmp_path / "shop" / "recipe.yaml").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_no_placeholder_remains_and_the_readme_has_ten_lines(kind, tmp_path):
    files = render_template(kind, tmp_path / "shop")
    assert "starter" not in "".join([*files, *files.values()]).lower()
    assert len(files["README.md"].splitlines()) <= 10
    assert "whetstone train recipe.yaml" in files["README.md"]


def test_existing_files_are_not_overwritten(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "shop_tools.py").write_text("mine")
    done = whetstone("new", "tool", "shop", cwd=tmp_path)
    assert done.returncode == 2
    assert "shop: exists" in done.stderr
    assert [(path.name, path.read_text()) for path in (tmp_path / "shop").iterdir()] == [("shop_tools.py", "mine")]


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("tol", "shop", 'named "tol"; did you mean "tool"?'),
        ("tool", "my-shop", 'did you mean "my_shop"?'),
        ("tool", "2nd", 'did you mean "nd"?'),
        ("tool", "class", 'class: "class" is not a valid Python name'),
        ("recipe", "cli/..", '".." is not a valid Python name'),
        ("recipe", "new", 'a module "test_new" exists'),
    ],
)
def test_invalid_name_is_refused_in_one_line(tmp_path, kind, name, message, monkeypatch):
    (tmp_path / "test_new.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    done = whetstone("new", kind, name, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["test_new.py"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_written_project_passes_its_tests_and_trains(tmp_path, kind):
    assert whetstone("new", kind, "shop", cwd=tmp_path).returncode == 0
    folder = tmp_path / "shop"
    where = os.pathsep.join(path for path in sys.path if path.endswith("src"))
    tried = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": where},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert tried.returncode == 0, tried.stdout + tried.stderr
    done = whetstone("train", "recipe.yaml", *SMALL, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stages"][-1]["after"]["episodes"] == 4
