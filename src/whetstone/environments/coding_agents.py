"""Known coding agents (`coding_agents.toml`), and the working folder of a command."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath

from whetstone.errors import RecipeError, did_you_mean

_MAX_FILE_CHARACTERS, _MAX_FILES = 1 << 16, 64
"""Maximum characters of all new files that are stored, and maximum number of files."""
_INHERITED = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "LANG", "LANGUAGE"),
        *("PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SYSTEMROOT"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    )
)
"""Environment variables that a command inherits, in addition to `LC_*`."""


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


def inherited_variables() -> dict[str, str]:
    """Return the environment variables of this process that a command inherits, and a fixed hash seed.

    Keys and tokens of the user are not among them: the model runs commands that can read and send them.
    """
    inherited = {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith("LC_")}
    return {**inherited, "PYTHONHASHSEED": "0"}


def find_coding_agent(name: str, path: str | None = None, *, is_installed: bool = True) -> CodingAgent:
    """Return a known agent, with the absolute path of its program.

    Args:
        name: Name of the agent in recipes, such as `claude-code`.
        path: Folders in which the program is searched, separated by colons; None: those of `PATH`.
        is_installed: Whether the program is on this machine; otherwise it is in an image, and its name is returned.

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
    if not is_installed:
        return agent
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

    See `select_changed_texts`.
    """
    files = ((path.relative_to(folder), path) for path in sorted(folder.rglob("*")))
    sized = (
        (name, path.stat().st_size, path.read_bytes) for name, path in files if not path.is_symlink() and path.is_file()
    )
    return select_changed_texts(sized, original)


def select_changed_texts(files: Iterable[tuple[PurePath, int, Callable[[], bytes]]], original: Path) -> dict[str, str]:
    """Return the texts of files that a folder does not have, or has with other content.

    Hidden folders and files that are not UTF-8 are left out. At most 64 files and 65,536 characters are read.

    Args:
        files: Relative path, size in bytes, and function that reads a file.
        original: Folder with the earlier files.
    """
    texts: dict[str, str] = {}
    free = _MAX_FILE_CHARACTERS
    for name, size, read in files:
        if any(part.startswith(".") for part in name.parts[:-1]) or size > 4 * free or len(texts) == _MAX_FILES:
            continue
        try:
            text = read().decode()
        except (OSError, UnicodeDecodeError):
            continue
        before = original / name
        is_new = not before.is_file() or before.read_bytes() != text.encode()
        if is_new and len(text) <= free:
            texts[str(name)] = text
            free -= len(text)
    return texts
