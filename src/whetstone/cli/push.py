"""`whetstone push`: a model, the trajectories of a run or an environment on the Hugging Face hub."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from whetstone import policies, training
from whetstone.atomic_write import new_folder
from whetstone.cli import shell_completion
from whetstone.cli.policy_argument import member_option, resolve_checkpoint
from whetstone.data.sensitive import missing_package
from whetstone.errors import RecipeError
from whetstone.optional_dependencies import get_package_version, install_command

if TYPE_CHECKING:
    from whetstone.policies.hub_upload import RepositoryKind

_UNITS = ("B", "kB", "MB", "GB", "TB")
_OF_MODELS = {"--checkpoint": "checkpoint", "--member": "member", "--merged": "merge", "--adapter": "adapter",
              "--dtype": "dtype"}  # fmt: skip
_REMEDIES = {
    "model": "remove it from the recipe or the prompts, and train again, or push a model folder without it",
    "trajectories": "add --redact, which replaces secrets and personal data",
    "environment": "write ${NAME} in the recipe, and read secrets from environment variables",
}


@click.command("push")
@click.argument("source", shell_complete=shell_completion.run_folders)
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--as", "kind", type=click.Choice(["model", "trajectories", "environment"]), default="model",
              show_default=True, help="What to push of SOURCE.")  # fmt: skip
@click.option("--checkpoint", metavar="step-N", help="Checkpoint of the run [the last one].")
@member_option
@click.option("--merged", "merge", is_flag=True, help="Merge the adapters into the base weights.")
@click.option("--adapter", is_flag=True, help="Push the adapters without merging, with their base in base/.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]),
              help="Precision of the weights [that of training].")  # fmt: skip
@click.option("--license", "license_name", default="", metavar="ID", help="License on the card, such as apache-2.0.")
@click.option("--redact", is_flag=True, help="Replace secrets and personal data in trajectories.")
@click.option("--public", is_flag=True, help="Make the repository public [private].")
@click.option("--dry-run", is_flag=True, help="Print what would be uploaded, without a connection to the hub.")
@click.option(
    "--output-dir", type=click.Path(path_type=Path), help="Also keep the uploaded files in this new directory."
)
def push_command(
    source: str,
    repository: str,
    kind: str,
    checkpoint: str | None,
    member: str | None,
    merge: bool,
    adapter: bool,
    dtype: str | None,
    license_name: str,
    redact: bool,
    public: bool,
    dry_run: bool,
    output_dir: Path | None,
) -> None:
    """Push SOURCE to the repository OWNER/NAME of the Hugging Face hub, in one commit.

    SOURCE is a run directory, a checkpoint or a model folder; with --as environment, a recipe file or its folder. The
    files are written, searched for secrets and listed before the upload; a secret ends the command. The token is that
    of `hf auth login`, or HF_TOKEN.
    """
    values = {"checkpoint": checkpoint, "member": member, "merge": merge, "adapter": adapter, "dtype": dtype}
    for option, name in _OF_MODELS.items():
        if kind != "model" and values[name]:
            raise RecipeError(f"{option}: has no effect with --as {kind}; leave it out")
    if redact and kind != "trajectories":
        raise RecipeError("--redact: replaces texts of trajectories; use it with --as trajectories")
    if merge and adapter:
        raise RecipeError("--adapter: cannot be combined with --merged; use one of both")
    policies.check_repository_name(repository)
    on_hub: RepositoryKind = "model" if kind == "model" else "dataset"
    target = None if dry_run else policies.find_target(repository, on_hub, is_public=public)
    with _prepared_folder(output_dir) as folder:
        if kind == "model":
            exported = training.export_model(
                resolve_checkpoint(source, checkpoint),
                folder / "files",
                weights="merged" if merge else "adapter" if adapter else "auto",
                dtype=cast("policies.ExportPrecision", dtype or "trained"),
                member=member,
                license_name=license_name,
                repository=repository,
            )
            notes = [f"{exported.parameters:,} parameters", *exported.lines]
        else:
            (folder / "files").mkdir()
            if kind == "trajectories":
                count = training.write_trajectory_dataset(
                    Path(source), folder / "files", redact=redact, license_name=license_name
                )
                notes = [f"{count:,} trajectories"]
            else:
                training.write_environment(Path(source), folder / "files", license_name=license_name)
                notes = [f"tag: {training.ENVIRONMENT_TAG}"]
        search = training.search_secrets(folder / "files")
        training.refuse_secrets(search, remedy=_REMEDIES[kind])
        _print_upload(folder / "files", repository, on_hub, target, notes, search, is_public=public)
        if output_dir is not None:
            with new_folder(output_dir) as copied:
                for name in policies.list_upload_files(folder / "files"):
                    (copied / name).parent.mkdir(parents=True, exist_ok=True)
                    (copied / name).write_bytes((folder / "files" / name).read_bytes())
        if target is not None:
            title = f"Upload {kind} with Whetstone {get_package_version()}"
            click.echo(f"uploaded: {policies.upload_folder(folder / 'files', target, message=title)}")
        else:
            click.echo("nothing was uploaded (--dry-run)")


@contextlib.contextmanager
def _prepared_folder(output_dir: Path | None) -> Iterator[Path]:
    """Create a temporary folder, next to the folder to keep if there is one."""
    if output_dir is not None and output_dir.exists():
        raise RecipeError(f"--output-dir {output_dir}: exists already, nothing was uploaded; choose another name")
    with tempfile.TemporaryDirectory(prefix="whetstone-push-") as folder:
        yield Path(folder)


def _print_upload(
    folder: Path,
    repository: str,
    kind: str,
    target: policies.HubTarget | None,
    notes: list[str],
    search: training.SecretSearch,
    *,
    is_public: bool,
) -> None:
    """Print the files of an upload with their sizes, replaced and deleted files, and the search for secrets."""
    paths = policies.list_upload_files(folder)
    sizes = {path: (folder / path).stat().st_size for path in paths}
    private = target.private if target is not None else not is_public
    state = "" if target is None else ", exists" if target.exists else ", new"
    click.echo(
        f"{repository} ({'private' if private else 'public'} {kind}{state}): {len(paths)} files, "
        f"{_format_size(sum(sizes.values()))}"
    )
    for path in paths:
        replaced = "  replaces the file there" if target is not None and path in target.replaced_files([path]) else ""
        click.echo(f"  {_format_size(sizes[path]):>9}  {path}{replaced}")
    for path in target.removed_files(paths) if target is not None else ():
        click.echo(f"    deletes  {path}")
    for note in notes:
        click.echo(f"  {note}")
    personal = ", ".join(f"{count} {name}" for name, count in sorted(search.personal.items()))
    click.echo(f"  secrets: none in {search.texts} text files; personal data: {personal or 'none'}")
    if missing_package():
        click.secho(f"  detect-secrets finds keys of further providers: {install_command('secrets')}", dim=True)


def _format_size(size: float) -> str:
    """Format a size in bytes, such as `1.9 MB`."""
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")
