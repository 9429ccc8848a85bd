"""Service unit, Containerfile and skill: their commands are valid, and the files that they name exist."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from whetstone.cli.main import cli

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "deploy" / "whetstone.service"
CONTAINERFILE = (ROOT / "Containerfile").read_text("utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


def parse_command(words):
    """Parse a command line of Whetstone; an unknown option raises."""
    command = cli.get_command(click.Context(cli), words[0])
    return command.make_context(words[0], list(words[1:]), resilient_parsing=False)


def directives(name):
    return [line.partition("=")[2] for line in UNIT.read_text("utf-8").splitlines() if line.startswith(f"{name}=")]


def test_command_of_the_service_is_valid_with_and_without_options():
    (line,) = directives("ExecStart")
    for options in ("", "--name shop --keys keys", "--checkpoint step-20 --name shop --keys keys"):
        words = shlex.split(line.replace("${MODEL}", "runs/shop").replace("$OPTIONS", options))
        context = parse_command(words[1:])
        assert words[0] == "/opt/whetstone/bin/whetstone"
        assert (context.params["run_or_model"], context.params["port"]) == ("runs/shop", 8000)
        assert context.params["checkpoint"] == ("step-20" if "checkpoint" in options else None)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd")
def test_systemd_accepts_the_service(tmp_path):
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text("utf-8").replace("/opt/whetstone/bin/whetstone", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert unit.name not in done.stderr, done.stderr


def test_containerfile_names_extras_and_files_that_exist_and_a_valid_command():
    (extras,) = re.findall(r'^ARG EXTRAS="(.*)"$', CONTAINERFILE, re.MULTILINE)
    assert set(extras.split(",")) <= EXTRAS.keys()
    copied = re.findall(r"^COPY (?!--from)(.*)$", CONTAINERFILE, re.MULTILINE)
    sources = [name for line in copied for name in line.split()[:-1]]
    assert [name for name in sources if not (ROOT / name).exists()] == []
    included = {
        line[1:] for line in (ROOT / ".containerignore").read_text("utf-8").splitlines() if line.startswith("!")
    }
    assert set(sources) <= included
    (command,) = re.findall(r"^CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    words = yaml.safe_load(command)
    assert parse_command(words).params["recipe"] == "demo"


def test_versions_in_the_container_are_those_of_the_lock_file():
    (expression,) = re.findall(r"sed -n '(.*)' requirements/dev.txt", CONTAINERFILE)
    done = subprocess.run(
        ["sed", "-n", expression, ROOT / "requirements" / "dev.txt"], capture_output=True, text=True, check=True
    )
    versions = done.stdout.splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[\w.+!]+", line) for line in versions)
    assert {"starlette", "uvicorn", "peft"} <= {line.partition("==")[0] for line in versions}


def test_skill_has_the_header_that_coding_agents_read():
    text = (ROOT / "SKILL.md").read_text("utf-8")
    header = yaml.safe_load(text.split("---")[1])
    assert set(header) == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9-]{1,64}", header["name"])
    assert len(header["description"]) <= 1024
    assert len(text.splitlines()) <= 500
