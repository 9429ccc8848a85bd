"""Install commands name the distribution of this project or the packages themselves, never another package of the
same name."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from whetstone.optional_dependencies import DISTRIBUTION, get_package_version, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WRITTEN = sorted(
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if name.endswith((".py", ".md", ".toml", ".yaml", ".j2", "Makefile"))
)


def test_distribution_has_its_own_name():
    assert PROJECT["name"] == DISTRIBUTION == "whetstone-rl"
    assert get_package_version() == PROJECT["version"]
    assert PROJECT["scripts"] == {"whetstone": "whetstone.cli.main:main"}


def test_no_message_names_the_other_package():
    strangers = re.compile(r"pip install [^\n]*['\" ]whetstone(?!-rl)[\[ '\"=<>]")
    messages = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in WRITTEN
        if path.is_file() and path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if strangers.search(line)
    ]
    assert messages == []


@pytest.mark.parametrize("extra", [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "worlds")])
def test_install_command_names_packages_so_that_it_works_from_a_clone(extra):
    command = install_command(extra)
    assert DISTRIBUTION not in command
    for requirement in PROJECT["optional-dependencies"][extra]:
        assert re.split(r"[\[<>=; ]", requirement)[0].replace("_", "-") in command


def test_unknown_extra_is_named_by_the_distribution():
    assert install_command("nothing") == "pip install 'whetstone-rl[nothing]'"
