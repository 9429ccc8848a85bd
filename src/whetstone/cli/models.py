"""`whetstone models`: pretrained models by name, for `policy.path`."""

from __future__ import annotations

from pathlib import Path

import click

import whetstone.policies
from whetstone.errors import PolicyError, RecipeError, did_you_mean
from whetstone.plain_json import to_json
from whetstone.tools.plain_text import plain


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List the pretrained models at hand, and those that can be fetched by name; add one."""
    if ctx.invoked_subcommand is not None:
        return
    kept = whetstone.policies.kept_models()
    fetched = {name: each for name, each in whetstone.policies.PUBLISHED.items() if name not in kept}
    if as_json:
        rows: list[dict[str, str | None]] = [
            {"name": m.name, "folder": str(m.folder), "source": m.origin.source, "licence": m.origin.licence}
            for m in kept.values()
        ]
        rows += [{"name": n, "folder": None, "source": p.requirement, "licence": p.licence} for n, p in fetched.items()]
        click.echo(to_json(rows))
        return
    for model in kept.values():
        licence = model.origin.licence or "licence unknown"
        click.secho(model.name, bold=True, nl=False)
        click.echo(plain(f"  {model.bytes / 1e6:,.0f} MB  {licence}  {model.origin.source}\n  {model.folder}"))
    for name, published in fetched.items():
        click.secho(name, bold=True, nl=False)
        click.echo(f"  not fetched  {published.licence}  {published.says}\n  whetstone models add {name}")


@models.command()
@click.argument("model")
@click.option("--name", help="What it is to be called; of a file, its own name unless said.")
def add(model: str, name: str | None) -> None:
    """Keep MODEL, a published model's name or a GGUF file, as a Hugging Face folder that recipes name."""
    file = Path(model)
    if model in whetstone.policies.PUBLISHED and not file.is_file():
        if name is not None:
            raise RecipeError(f"--name: a published model keeps its own ({model})")
        kept = whetstone.policies.fetch(model, say=lambda line: click.echo(line, err=True))
    elif file.suffix == ".gguf":
        licence = whetstone.policies.licence_of(file)

        def make(folder: Path) -> whetstone.policies.Origin:
            whetstone.policies.convert_gguf(file, folder)
            return whetstone.policies.Origin(file.name, licence)

        kept = whetstone.policies.keep(name or file.stem, make)
    else:
        nearest = did_you_mean(model, whetstone.policies.PUBLISHED)
        raise PolicyError(f'no published model "{model}"{nearest}; or a file: FILE.gguf')
    licence = kept.origin.licence
    said = f"its licence is {licence}" if licence else "nothing says what its licence is: see where it comes from"
    click.echo(plain(f"{kept.name}: {said}; it is in {kept.folder}"))
    click.echo(f"a recipe names it: policy: {{path: {kept.name}}}")
