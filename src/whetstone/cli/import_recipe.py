"""`whetstone import`: a configuration of TRL or verl as a recipe."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import click
from ruamel.yaml import YAML

from whetstone.atomic_write import write_text
from whetstone.plain_json import to_json
from whetstone.recipe.foreign import read_foreign, translate


@click.command("import")
@click.argument("kind", type=click.Choice(["trl", "verl"]))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Write the recipe there; else it is printed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def import_recipe(kind: str, file: Path, output: Path | None, as_json: bool) -> None:
    """Translate FILE, a configuration of TRL (GRPOConfig: YAML, JSON or Python) or of verl (YAML), into a recipe.

    Says line by line what became of each key, and which have no counterpart. Nothing of FILE is run.
    """
    found = translate(kind, read_foreign(kind, file))
    page = StringIO()
    YAML().dump(found.nested(), page)
    if output is not None:
        write_text(output, page.getvalue())
    if as_json:
        told = {"translated": found.translated, "missing": found.missing, "unneeded": found.unneeded}
        click.echo(to_json({"recipe": found.nested(), **told}))
        return
    if output is None:
        click.echo(page.getvalue())
    for title, lines in (("translated", found.translated), ("no effect", found.unneeded), ("missing", found.missing)):
        for line in lines:
            click.echo(f"{title:<10} {line}", err=output is None)
