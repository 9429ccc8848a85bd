"""`whetstone export`: a trained policy as a folder for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

import whetstone.policies
import whetstone.record
from whetstone import training
from whetstone.cli import completing
from whetstone.errors import RecipeError


@click.command()
@click.argument("run_or_model", shell_complete=completing.run_folders)
@click.option("--output-dir", type=click.Path(path_type=Path), required=True, help="Output directory; must not exist.")
@click.option("--merged", "merge", is_flag=True, help="Merge the adapters into the base weights.")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="What weights are written in [bfloat16]."
)
@click.option("--gguf", is_flag=True, help="A GGUF file, too, by llama.cpp's converter.")
def export(run_or_model: str, output_dir: Path, merge: bool, dtype: str | None, gguf: bool) -> None:
    """Write RUN_OR_MODEL, a run at its last checkpoint or a model folder, as a Hugging Face folder.

    `transformers.AutoModelForCausalLM.from_pretrained` opens it. Adapters that are not merged stay adapters, in PEFT's
    layout.
    """
    if gguf:
        whetstone.policies.gguf_converter()
    run = Path(run_or_model)
    if (run / "recipe.yaml").is_file():
        policy = training.final_policy(
            run, trust_remote_code=whetstone.record.run_recipe(run).recipe.policy.trust_remote_code
        )
    else:
        policy = whetstone.policies.load_policy(run_or_model, as_stored=True)
    numbers = cast(whetstone.policies.ExportPrecision, dtype or "bfloat16")
    if whetstone.policies.has_adapters(policy.model) and not merge:
        for option, given in (("--dtype", dtype), ("--gguf", gguf)):
            if given:
                raise RecipeError(f"{option}: adapters alone are written as they were trained; add --merged")
    else:
        policy = whetstone.policies.merged(policy, numbers)
    written = whetstone.policies.export_policy(policy, output_dir, gguf=numbers if gguf else None)
    click.echo(f"{written}: {policy.parameters:,} parameters")
