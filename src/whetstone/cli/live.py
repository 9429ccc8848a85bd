"""`whetstone live`: a policy that learns from whoever talks to it."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

import whetstone.record
import whetstone.serving.live
import whetstone.training
from whetstone.cli.effects import allow_effects_option, ask_once, permitting
from whetstone.cli.listening import access_log_option, bound_to, keys_for, served_at, start_access_log
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import RunDirectoryError
from whetstone.recipe import Resolved, load_recipe
from whetstone.serving.connections import keep_what_is_loaded, runner

if TYPE_CHECKING:
    from whetstone.serving import Keys


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--run-dir", type=click.Path(path_type=Path, file_okay=False),
              help="Run directory, continued if it exists [runs/RECIPE-live, or RUN-live next to a run].")  # fmt: skip
@click.option("--host", "address", default="127.0.0.1", show_default=True, help="Address on which the server listens.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 picks a free one."
)
@click.option("--name", help="What clients call the model; the recipe's name unless said.")
@click.option("--keys", type=click.Path(path_type=Path),
              help="File with API keys. Without it only requests from localhost are accepted.")  # fmt: skip
@click.option("--paused", is_flag=True, help="Begin without learning, until POST /v1/live/resume.")
@click.option("--idle-seconds", type=click.FloatRange(min=1), default=3600.0, show_default=True,
              help="Close an episode after this many seconds without a request.")  # fmt: skip
@allow_effects_option
@access_log_option("-")
def live(
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
    """Serve the policy of RECIPE, or of a run at its last checkpoint, and let it learn from what follows its answers.

    A correction, the same question again, a tool's error: each lowers the answer before it, and what was said is the
    hint by which the policy teaches itself. Stopped or killed and called again it goes on. The address itself, without
    /v1, is a page for people, who talk with the policy, take over its answers and rate them.

    \b
    whetstone live runs/demo live.turns_per_update=4 live.reference_kl=0.05
    whetstone live runs/demo 'live.guard={interval_updates: 5, max_drop: 0.1}' live.require_approval=true
    curl localhost:8000/v1/live                          # what is learned from next, and why
    curl -X POST localhost:8000/v1/live/episodes/ID/unlearn
    """
    known = keys_for(address, keys)
    resolved = _resolved(recipe, permitting(overrides, allow_effects))
    folder = run_dir or default_folder(recipe, resolved.name)
    if (folder / "recipe.yaml").is_file() and not (folder / "live").is_dir():
        raise RunDirectoryError(f"{folder}: holds a run of `whetstone train`; choose another --run-dir")
    resolved = _permitted(whetstone.training.pin_choices(resolved, folder, resume=True))
    start_access_log(access_log)
    with bound_to(address, port) as bound, whetstone.record.claimed(folder, resolved, resume=True):
        asyncio.run(_live(resolved, folder, bound, name or resolved.name, known, paused, idle_seconds))


def _permitted(resolved: Resolved) -> Resolved:
    """Return the recipe with permission for the real calls of `live.guard`; the calls of clients are the clients'.

    Raises:
        RecipeError: Nothing permits them.
    """
    if resolved.recipe.live is None or resolved.recipe.live.guard is None:
        return resolved
    evaluation = [(resolved, lambda played: played.recipe.evaluation.interval_episodes)]
    return whetstone.training.permit_run(
        resolved, evaluation, ask=ask_once(), log=lambda line: click.echo(f"{line}; per evaluation", err=True)
    )


def default_folder(recipe: str, name: str) -> Path:
    """Return where a live run is stored by default: next to the run it starts from, else in `runs`."""
    run = Path(recipe)
    return (run.resolve().parent if (run / "recipe.yaml").is_file() else Path("runs")) / f"{name}-live"


def _resolved(recipe: str, overrides: tuple[str, ...]) -> Resolved:
    run = Path(recipe)
    if not (run / "recipe.yaml").is_file():
        return load_recipe(recipe, overrides)
    checkpoint = whetstone.record.kept_checkpoint(run)
    if checkpoint is None:
        raise RunDirectoryError(f"{run}: no checkpoint that can be read")
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

    service_type = whetstone.serving.live.LiveService
    made = partial(service_type, resolved, folder, name=name, keys=keys, idle_seconds=idle_seconds, say=say)
    async with await run_in_compute_thread(made) as service:
        if paused:
            service.live.pause(True)
        asked = runner(service.app)
        keep_what_is_loaded()
        click.echo(f"{name} at {served_at(bound)}, learning in {folder}")
        serving = asyncio.ensure_future(asked.serve(sockets=[bound]))
        assert service.learning is not None
        await asyncio.wait([serving, service.learning], return_when=asyncio.FIRST_COMPLETED)
        asked.should_exit = True  # whichever ended, the other does not go on without it
        await serving
