"""`whetstone new`: something small of one's own that runs, with its test, to begin from.

What is written lies in `starting-points/`, a folder for each kind, as files that are linted, typed and tested like the
rest; the word `starter` in them is the name of what is written.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
from importlib import resources
from pathlib import Path

import click

from whetstone.atomic_write import new_folder
from whetstone.errors import RecipeError, did_you_mean

_STARTING_POINTS = resources.files("whetstone") / "cli" / "starting-points"
_PLACEHOLDER = re.compile(r"(?<![A-Za-z])starter(?![A-Za-z])")
KINDS = ("recipe", "tool", "environment", "reward", "task", "method")


@click.command()
@click.argument("kind", metavar="|".join(KINDS))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def new(kind: str, folder: Path) -> None:
    """Write a recipe, tool, environment, reward, task or method of your own into DIR, a folder that is not there yet.

    It runs as it is: a file to change, a recipe that trains with it, and a test that plain `pytest` passes. What DIR is
    called is what the files are called: `whetstone new tool shop` writes shop/shop_tools.py.
    """
    files = written_files(kind, folder)
    if folder.exists():
        raise RecipeError(f"{folder}: is there already; nothing was written. Name a folder that is not there yet")
    with new_folder(folder) as aside:
        for name, text in files.items():
            (aside / name).write_text(text, encoding="utf-8")
    for name in files:
        click.echo(f"wrote {folder / name}")
    click.echo(f"next: cd {shlex.quote(str(folder))} && pytest && whetstone train recipe.yaml")


def written_files(kind: str, folder: Path) -> dict[str, str]:
    """By name, what is written into this folder.

    Args:
        kind: One of `KINDS`.
        folder: Its last part is the name: small letters, digits and underscores, beginning with a letter.

    Raises:
        RecipeError: No such kind; no such name can be a module's; or there is a module that would be hidden.
    """
    if kind not in KINDS:
        raise RecipeError(f'nothing to begin from named "{kind}"{did_you_mean(kind, KINDS)}')
    name = folder.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        right = re.sub(r"\W+", "_", name.lower(), flags=re.ASCII).strip("_0123456789")
        near = f'; did you mean "{folder.parent / right}"?' if right and not keyword.iskeyword(right) else ""
        raise RecipeError(
            f'{folder}: "{name}" cannot be a name in Python; small letters, digits and underscores can{near}'
        )
    sources = sorted((_STARTING_POINTS / kind).iterdir(), key=lambda entry: entry.name)
    files = {
        _PLACEHOLDER.sub(name, source.name): _PLACEHOLDER.sub(name, source.read_text(encoding="utf-8"))
        for source in sources
        if source.is_file()
    }
    for module in (Path(file).stem for file in files if file.endswith(".py")):
        found = importlib.util.find_spec(module)
        if found is not None:
            raise RecipeError(f'{folder}: there is a module "{module}" already ({found.origin}); take another name')
    return files
