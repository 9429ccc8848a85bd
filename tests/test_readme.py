"""The code and the commands of the README and of `your-own.md` run as shown."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import whetstone
from support.sandbox import needs_isolation
from support.slow import mostly_slow

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text() + (ROOT / "docs" / "guide" / "your-own.md").read_text()


def block(language, number=0):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)[number]


OWN_TASK = [
    line.removeprefix("$ whetstone ").split("#")[0].strip()
    for line in re.findall(r"^\$ whetstone train shop\.yaml.*$", README, re.MULTILINE)
    if "FOLDER" not in line
]


@pytest.mark.parametrize(
    "command",
    [pytest.param(command, marks=needs_isolation) if "name: python" in command else command for command in OWN_TASK],
)
def test_every_command_with_the_tool_of_the_readme_trains(tmp_path, command, request):
    if command == OWN_TASK[0]:
        request.getfixturevalue("rendered")
    (tmp_path / "shop.py").write_text(block("python"))
    (tmp_path / "shop_loss.py").write_text(block("python", 1))
    (tmp_path / "shop_basket.py").write_text(block("python", 2))
    (tmp_path / "shop_credit.py").write_text(block("python", 5))
    (tmp_path / "shop_rollout.py").write_text(block("python", 6))
    (tmp_path / "shop.jsonl").write_text(block("json"))
    (tmp_path / "shop.yaml").write_text(block("yaml"))
    done = whetstone(*shlex.split(command), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stages"][-1]["after"]["episodes"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    mostly_slow(
        ["environments check guess:Guess --tasks guess:Numbers actions=text --json", "train guess.yaml --json"],
        quick=["train guess.yaml --json"],
    ),
)
def test_environment_of_the_readme_passes_its_checks_and_trains(tmp_path, command):
    assert command.removesuffix(" --json") in README
    (tmp_path / "guess.py").write_text(block("python", 3))
    (tmp_path / "guess.yaml").write_text(block("yaml", 1))
    done = whetstone(*shlex.split(command), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["stages"][-1]["after"]["episodes"] == 50 if "stages" in summary else summary["kept"]


@pytest.mark.slow
def test_data_of_the_page_on_data_is_trained_on(tmp_path):
    page = (ROOT / "docs" / "guide" / "data.md").read_text()
    (tmp_path / "chats.jsonl").write_text(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    for name, language in (("shop.py", "python"), ("shop.jsonl", "json"), ("shop.yaml", "yaml")):
        (tmp_path / name).write_text(block(language))
    for command in re.findall(r"^\$ whetstone (.* shop\.yaml.*)$", page, re.MULTILINE):
        done = whetstone(*shlex.split(command), "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
    assert report["stages"][-1]["after"]["episodes"] >= 1


@pytest.mark.slow
def test_python_code_of_the_readme_trains(tmp_path):
    for name, language, number in (("shop.py", "python", 0), ("shop.jsonl", "json", 0), ("shop.yaml", "yaml", 0)):
        (tmp_path / name).write_text(block(language, number))
    (tmp_path / "from_python.py").write_text(block("python", 4))
    done = subprocess.run(
        [sys.executable, "from_python.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6
    assert "from_python:better_than_half" in (tmp_path / "runs" / "from-python" / "recipe.yaml").read_text()


def test_loss_has_at_most_ten_lines():
    assert len([line for line in block("python", 1).splitlines() if line.strip()]) <= 10


def test_tool_has_at_most_fifteen_lines():
    lines = [line for line in block("python").splitlines() if line.strip()]
    assert len(lines) <= 15


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?\bmake ([a-z-]+)", README))))
def test_every_make_target_it_names_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", sorted(set(re.findall(r"\$ \S*whetstone (\w+)", README))))
def test_every_command_it_names_exists(command):
    module = {"import": "import_recipe"}.get(command, command)  # `import` is a keyword of Python
    assert (ROOT / "src" / "whetstone" / "cli" / f"{module}.py").is_file()
