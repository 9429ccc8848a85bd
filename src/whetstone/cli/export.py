"""`whetstone export`: a trained policy as a folder for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

import whetstone.policies
from whetstone import training
from whetstone.cli import shell_completion
from whetstone.cli.policy_argument import member_option, resolve_checkpoint
from whetstone.errors import RecipeError


@click.command("export")
@click.argument("run_or_model", shell_complete=shell_completion.run_folders)
@click.option("--output-dir", type=click.Path(path_type=Path), required=True, help="Output directory; must not exist.")
@click.option("--checkpoint", metavar="step-N", help="Checkpoint of the run [the last one].")
@member_option
@click.option("--merged", "merge", is_flag=True, help="Merge the adapters into the base weights.")
@click.option("--adapter", is_flag=True, help="Write the adapters without merging, with their base in DIR/base.")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Precision of the weights [bfloat16]."
)
@click.option("--gguf", is_flag=True, help="Also write a GGUF file and an Ollama Modelfile.")
@click.option("--chat-template", type=click.Choice(["training", "original"]), default="training", show_default=True,
              help="Render tools as in training, or keep the template of the model.")  # fmt: skip
def export_command(
    run_or_model: str,
    output_dir: Path,
    checkpoint: str | None,
    member: str | None,
    merge: bool,
    adapter: bool,
    dtype: str | None,
    gguf: bool,
    chat_template: str,
) -> None:
    """Write RUN_OR_MODEL, a run at its last checkpoint, a checkpoint or a model folder, as a Hugging Face folder.

    Transformers, vLLM and SGLang load it. Its chat template renders tools, calls and results as in training, which is
    tested on stored episodes of the run. README.md is a model card with the commands.

    Adapters are merged into the base, unless the base is a model of the Hugging Face hub, byte by byte: then the folder
    holds adapters that name it.
    """
    if merge and adapter:
        raise RecipeError("--adapter: cannot be combined with --merged; use one of both")
    exported = training.export_model(
        resolve_checkpoint(run_or_model, checkpoint),
        output_dir,
        weights="merged" if merge else "adapter" if adapter else "auto",
        dtype=cast("whetstone.policies.ExportPrecision | None", dtype),
        gguf=gguf,
        template="original" if chat_template == "original" else "training",
        member=member,
    )
    click.echo(f"{exported.folder}: {exported.parameters:,} parameters")
    for line in exported.lines:
        click.echo(f"  {line}")
