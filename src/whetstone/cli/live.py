"""`whetstone live`: online learning of a served policy from its conversations."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

import whetstone.record
import whetstone.serving.online
import whetstone.training
from whetstone.cli.effects import add_permissions, allow_effects_option, ask_once
from whetstone.cli.server_options import access_log_option, bind_socket, load_api_keys, server_url, start_access_log
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import RunDirectoryError
from whetstone.garbage import exclude_present_objects
from whetstone.recipe import Resolved, load_recipe
from whetstone.serving.http_server import build_server

if TYPE_CHECKING:
    from whetstone.serving import Keys


@click.command("live")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--run-dir", type=click.Path(path_type=Path, file_okay=False),
              help="Run directory, continued if it exists [runs/RECIPE-live, or RUN-live next to a run].")  # fmt: skip
@click.option("--host", "address", default="127.0.0.1", show_default=True, help="Address on which the server listens.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 picks a free one."
)
@click.option("--name", help="Name of the model for clients [the recipe's name].")
@click.option("--keys", type=click.Path(path_type=Path),
              help="File with API keys. Without it only requests from localhost are accepted.")  # fmt: skip
@click.option("--paused", is_flag=True, help="Start without training, until POST /v1/live/resume.")
@click.option("--idle-seconds", type=click.FloatRange(min=1), default=3600.0, show_default=True,
              help="Close an episode after this many seconds without a request.")  # fmt: skip
@allow_effects_option
@access_log_option("-")
def live_command(
    recipe: str,
    overrides: tuple[str, ...],
    run_dir: Path | None,
    address: str,
    port: int,
    name: str | None,
    keys: Path | None,
    paused: bool,
    idle_seconds: float,
    allow_effects: bool,
    access_log: str,
) -> None:
    """Serve the policy of RECIPE, or of a run at its last checkpoint, and train it on the feedback in its
    conversations.

    A correction, a repeated question or a tool error lowers the reward of the preceding response. The text of the
    feedback is the hint for self-distillation. If stopped or killed, the same command resumes. The address without /v1
    is a page on which people chat with the policy, replace its responses and rate them.

    \b
    whetstone live runs/demo live.turns_per_update=4 live.reference_kl=0.05
    whetstone live runs/demo 'live.guard={interval_updates: 5, max_drop: 0.1}' live.require_approval=true
    curl localhost:8000/v1/live                          # the next training batch, with reasons
    curl -X POST localhost:8000/v1/live/episodes/ID/unlearn
    """
    known = load_api_keys(address, keys)
    resolved = _load(recipe, add_permissions(overrides, allow_effects))
    folder = run_dir or default_folder(recipe, resolved.name)
    if (folder / "recipe.yaml").is_file() and not (folder / "live").is_dir():
        raise RunDirectoryError(f"{folder}: holds a run of `whetstone train`; choose another --run-dir")
    resolved = _permit_calls(whetstone.training.pin_choices(resolved, folder, resume=True))
    start_access_log(access_log)
    with bind_socket(address, port) as bound, whetstone.record.open_run_directory(folder, resolved, resume=True):
        asyncio.run(_live(resolved, folder, bound, name or resolved.name, known, paused, idle_seconds))


def _permit_calls(resolved: Resolved) -> Resolved:
    """Return the recipe with permission for the real tool calls of `live.guard`.

    Tool calls of clients are made by the clients, so they need no permission.

    Raises:
        RecipeError: If neither the recipe nor an option permits the calls.
    """
    if resolved.recipe.live is None or resolved.recipe.live.guard is None:
        return resolved
    evaluation = [(resolved, lambda played: played.recipe.evaluation.interval_episodes)]
    return whetstone.training.permit_run(
        resolved, evaluation, ask=ask_once(), log=lambda line: click.echo(f"{line}; per evaluation", err=True)
    )


def default_folder(recipe: str, name: str) -> Path:
    """Return the default directory of a live run.

    It is next to the run that the policy comes from, otherwise in `runs`.
    """
    run = Path(recipe)
    return (run.resolve().parent if (run / "recipe.yaml").is_file() else Path("runs")) / f"{name}-live"


def _load(recipe: str, overrides: tuple[str, ...]) -> Resolved:
    run = Path(recipe)
    if not (run / "recipe.yaml").is_file():
        return load_recipe(recipe, overrides)
    checkpoint = whetstone.record.kept_checkpoint(run)
    if checkpoint is None:
        raise RunDirectoryError(
            f"{run}: no checkpoint that can be read; resume the run until its first checkpoint is saved"
        )
    begins = {"policy.path": str(checkpoint.resolve()), "policy.tiny": None, "policy.revision": None}
    resolved = replace(whetstone.record.run_recipe(run).with_changes(begins), name=run.resolve().name)
    return resolved.with_overrides(overrides) if overrides else resolved


async def _live(
    resolved: Resolved,
    folder: Path,
    bound: socket.socket,
    name: str,
    keys: Keys,
    paused: bool,
    idle_seconds: float,
) -> None:
    def say(line: str) -> None:
        click.echo(line, err=True)

    service_type = whetstone.serving.online.LiveService
    create = partial(service_type, resolved, folder, name=name, keys=keys, idle_seconds=idle_seconds, say=say)
    async with await run_in_compute_thread(create) as service:
        if paused:
            service.live.set_paused(True)
        server = build_server(service.app)
        exclude_present_objects()
        click.echo(f"{name} at {server_url(bound)}, run directory {folder}")
        serving = asyncio.ensure_future(server.serve(sockets=[bound]))
        assert service.learning is not None
        await asyncio.wait([serving, service.learning], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True  # when one of them ends, stop the other
        await serving
