"""`whetstone import`: a configuration of TRL or verl as a recipe."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import click
from ruamel.yaml import YAML

from whetstone.atomic_write import write_text
from whetstone.errors import RecipeError
from whetstone.recipe.importers.reading import read_config
from whetstone.recipe.importers.translation import STATUSES, translate_config
from whetstone.strict_json import to_json


@click.command("import")
@click.argument("kind", type=click.Choice(["trl", "verl"]))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="File for the recipe [standard output].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def import_recipe(kind: str, file: Path, output: Path | None, as_json: bool) -> None:
    """Translate FILE, a configuration of TRL or verl, into a recipe.

    FILE is YAML, JSON, a training script (Python) or a shell script with the command line. Nothing of FILE is run. Each
    key is reported: translated, a default of the library that differs from that of a recipe, off, without effect on the
    result, missing (with the remedy), or to set in the recipe.
    """
    if output is not None and output.exists():
        raise RecipeError(f"--output: {output} exists already; choose another file, or delete it first")
    translation = translate_config(kind, read_config(kind, file))
    page = StringIO()
    YAML().dump(translation.to_nested_keys(), page)
    if output is not None:
        write_text(output, page.getvalue())
    if as_json:
        report = {status.replace(" ", "_"): translation.format_entries(status) for status in STATUSES}
        click.echo(to_json({"recipe": translation.to_nested_keys(), **report}))
        return
    if output is None:
        click.echo(page.getvalue())
    for status in STATUSES:
        for line in translation.format_entries(status):
            click.echo(f"{status:<10} {line}", err=output is None)
    if output is not None:
        click.echo(f"wrote {output}; next: whetstone doctor {output}")
