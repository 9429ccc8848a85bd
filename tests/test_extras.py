"""What we tell people to install is ours, or what it says it is; never somebody else's package of our name."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from whetstone.extras import DISTRIBUTION, install_command, release

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WRITTEN = sorted(
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if name.endswith((".py", ".md", ".toml", ".yaml", ".j2", "Makefile"))
)


def test_the_distribution_has_a_name_of_its_own():
    assert PROJECT["name"] == DISTRIBUTION == "whetstone-rl"
    assert release() == PROJECT["version"]
    assert PROJECT["scripts"] == {"whetstone": "whetstone.cli.main:main"}


def test_no_message_names_the_strangers_package():
    strangers = re.compile(r"pip install [^\n]*['\" ]whetstone(?!-rl)[\[ '\"=<>]")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in WRITTEN
        if path.is_file() and path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if strangers.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("extra", [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "worlds")])
def test_a_command_names_the_packages_themselves_so_that_it_works_from_a_clone(extra):
    command = install_command(extra)
    assert DISTRIBUTION not in command
    for requirement in PROJECT["optional-dependencies"][extra]:
        assert re.split(r"[\[<>=; ]", requirement)[0].replace("_", "-") in command


def test_an_extra_nobody_knows_is_named_by_the_distribution():
    assert install_command("nothing") == "pip install 'whetstone-rl[nothing]'"
