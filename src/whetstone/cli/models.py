"""`whetstone models`: pretrained models by name, for `policy.path`."""

from __future__ import annotations

from pathlib import Path

import click

import whetstone.policies
from whetstone.errors import PolicyError, RecipeError, did_you_mean
from whetstone.strict_json import to_json
from whetstone.tools.sanitize_text import sanitize_text


@click.group("models", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_context
def models_command(ctx: click.Context, as_json: bool) -> None:
    """List the pretrained models on this machine and those that can be downloaded by name; add one."""
    if ctx.invoked_subcommand is not None:
        return
    stored = whetstone.policies.stored_models()
    fetched = {name: each for name, each in whetstone.policies.PUBLISHED.items() if name not in stored}
    if as_json:
        rows: list[dict[str, str | None]] = [
            {"name": m.name, "folder": str(m.folder), "source": m.origin.source, "licence": m.origin.licence}
            for m in stored.values()
        ]
        rows += [{"name": n, "folder": None, "source": p.requirement, "licence": p.licence} for n, p in fetched.items()]
        click.echo(to_json(rows))
        return
    for model in stored.values():
        license = model.origin.licence or "license unknown"
        click.secho(model.name, bold=True, nl=False)
        click.echo(sanitize_text(f"  {model.bytes / 1e6:,.0f} MB  {license}  {model.origin.source}\n  {model.folder}"))
    for name, published in fetched.items():
        click.secho(name, bold=True, nl=False)
        click.echo(f"  not fetched  {published.licence}  {published.says}\n  whetstone models add {name}")


@models_command.command("add")
@click.argument("model")
@click.option("--name", help="Name of the model [that of the file].")
def add_model_command(model: str, name: str | None) -> None:
    """Add MODEL, a published model's name or a GGUF file, as a Hugging Face folder that recipes can name."""
    file = Path(model)
    if model in whetstone.policies.PUBLISHED and not file.is_file():
        if name is not None:
            raise RecipeError(f"--name: a published model keeps its name ({model})")
        present = whetstone.policies.stored_models()
        stored = (
            present[model]
            if model in present
            else whetstone.policies.download_model(model, say=lambda line: click.echo(line, err=True))
        )
    elif file.suffix == ".gguf":
        license = whetstone.policies.read_license(file)

        def make(folder: Path) -> whetstone.policies.Origin:
            whetstone.policies.convert_gguf(file, folder)
            return whetstone.policies.Origin(file.name, license)

        stored = whetstone.policies.store_model(name or file.stem, make)
    else:
        nearest = did_you_mean(model, whetstone.policies.PUBLISHED)
        raise PolicyError(f'no published model "{model}"{nearest}; or a file: FILE.gguf')
    license = stored.origin.licence
    about = f"license {license}" if license else "license unknown: see its source"
    click.echo(sanitize_text(f"{stored.name}: {about}; it is in {stored.folder}"))
    click.echo(f"use it in a recipe: policy: {{path: {stored.name}}}")
