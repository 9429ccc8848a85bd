"""`whetstone new`: write a template of a component or recipe, with its test.

The templates are in `project-templates/`, one folder per kind, and are linted, type-checked and tested. The word
`starter` in them is replaced by the name of the new folder.
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

_STARTING_POINTS = resources.files("whetstone") / "cli" / "project-templates"
_PLACEHOLDER = re.compile(r"(?<![A-Za-z])starter(?![A-Za-z])")
KINDS = ("recipe", "tool", "environment", "reward", "task", "method")


@click.command("new")
@click.argument("kind", metavar="|".join(KINDS))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def new_command(kind: str, folder: Path) -> None:
    """Write a template of a recipe, tool, environment, reward, task or method into DIR, which must not exist.

    It runs unchanged: a file to edit, a recipe that trains with it, and a test that plain `pytest` passes. The files
    are named after DIR: `whetstone new tool shop` writes shop/shop_tools.py.
    """
    files = render_template(kind, folder)
    if folder.exists():
        raise RecipeError(f"{folder}: exists already, nothing was written; choose another name")
    with new_folder(folder) as aside:
        for name, text in files.items():
            (aside / name).write_text(text, encoding="utf-8")
    for name in files:
        click.echo(f"wrote {folder / name}")
    click.echo(f"next: cd {shlex.quote(str(folder))} && pytest && whetstone train recipe.yaml")


def render_template(kind: str, folder: Path) -> dict[str, str]:
    """Render the files of a template.

    Args:
        kind: Kind of template, one of `KINDS`.
        folder: Folder whose last part is the name: lowercase letters, digits and underscores, starting with a letter.

    Returns:
        File name → text.

    Raises:
        RecipeError: If the kind does not exist, the name is not valid in Python, or the new module would hide another.
    """
    if kind not in KINDS:
        raise RecipeError(f'no template named "{kind}"{did_you_mean(kind, KINDS)}')
    name = folder.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        right = re.sub(r"\W+", "_", name.lower(), flags=re.ASCII).strip("_0123456789")
        near = f'; did you mean "{folder.parent / right}"?' if right and not keyword.iskeyword(right) else ""
        raise RecipeError(
            f'{folder}: "{name}" is not a valid Python name; use lowercase letters, digits and underscores{near}'
        )
    sources = sorted((_STARTING_POINTS / kind).iterdir(), key=lambda entry: entry.name)
    files = {
        _PLACEHOLDER.sub(name, source.name): _PLACEHOLDER.sub(name, source.read_text(encoding="utf-8"))
        for source in sources
        if source.is_file()
    }
    for module in (Path(file).stem for file in files if file.endswith(".py")):
        spec = importlib.util.find_spec(module)
        if spec is not None:
            raise RecipeError(f'{folder}: a module "{module}" exists ({spec.origin}); choose another name')
    return files
