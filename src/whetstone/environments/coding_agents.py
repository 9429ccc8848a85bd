"""Known coding agents (`coding_agents.toml`), and the working folder of a command."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from whetstone.errors import RecipeError, did_you_mean

_MAX_FILE_CHARACTERS, _MAX_FILES = 1 << 16, 64
"""Maximum characters of all new files that are stored, and maximum number of files."""


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """Command and environment variables of a coding agent, with `{task}`, `{base_url}` and `{host_url}` to replace."""

    name: str
    """Name in recipes."""
    install: str
    """Command that installs it."""
    command: tuple[str, ...]
    """Program and arguments."""
    variables: Mapping[str, str]
    """Environment variables that disable updates, telemetry and logins."""


@cache
def _known_agents() -> Mapping[str, CodingAgent]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return {
        name: CodingAgent(name, table["install"], tuple(table["command"]), table.get("variables", {}))
        for name, table in tables.items()
    }


def find_coding_agent(name: str, path: str | None = None) -> CodingAgent:
    """Return a known agent, with the absolute path of its program.

    Args:
        name: Name of the agent in recipes, such as `claude-code`.
        path: Folders in which the program is searched, separated by colons; None: those of `PATH`.

    Raises:
        RecipeError: If the agent is unknown or not installed.
    """
    known = _known_agents()
    if name not in known:
        raise RecipeError(
            f'environment agent: program: there is no "{name}"{did_you_mean(name, list(known))}; allowed: '
            f"{', '.join(known)}; or set command"
        )
    agent = known[name]
    program = shutil.which(agent.command[0], path=path)
    if program is None:
        raise RecipeError(
            f"environment agent: program {name}: there is no {agent.command[0]} on the PATH; run: {agent.install}"
        )
    return CodingAgent(name, agent.install, (program, *agent.command[1:]), agent.variables)


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace `{name}` by the value of each name; other braces, and those in values, remain."""
    names = "|".join(map(re.escape, values))
    return re.sub(rf"\{{({names})\}}", lambda match: values[match[1]], text)


def read_changed_files(folder: Path, original: Path) -> dict[str, str]:
    """Return the text of the files in a folder that the original folder does not have, or has with other content.

    Hidden folders, links and files that are not UTF-8 are left out. At most 64 files and 65,536 characters are read.
    """
    texts: dict[str, str] = {}
    free = _MAX_FILE_CHARACTERS
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_symlink() or not path.is_file() or any(part.startswith(".") for part in name.parts[:-1]):
            continue
        if path.stat().st_size > 4 * free or len(texts) == _MAX_FILES:
            continue
        try:
            text = path.read_bytes().decode()
        except (OSError, UnicodeDecodeError):
            continue
        before = original / name
        is_new = not before.is_file() or before.read_bytes() != text.encode()
        if is_new and len(text) <= free:
            texts[str(name)] = text
            free -= len(text)
    return texts
