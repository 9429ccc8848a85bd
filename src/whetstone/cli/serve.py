"""`whetstone serve`: a policy behind OpenAI's APIs and Anthropic's, with every call on record."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

import whetstone.serving
from whetstone.cli.listening import access_log_option, bound_to, keys_for, served_at, start_access_log
from whetstone.cli.run_or_model import assembled, at_checkpoint, is_run_or_checkpoint
from whetstone.cli.unread import LEARNING, say_unread
from whetstone.data.redacting import Redacting
from whetstone.data.sensitive import find_redactor
from whetstone.errors import RecipeError, explained
from whetstone.serving.access import ROLES
from whetstone.serving.connections import keep_what_is_loaded, runner
from whetstone.serving.judging import Judging
from whetstone.serving.people import PeopleQueue, people_routes
from whetstone.trajectory import Trajectory
from whetstone.trajectory_json import encoded_trajectory

if TYPE_CHECKING:
    from whetstone.assembly import Assembly
    from whetstone.serving import Keys


_OF_EPISODES = ("rollout", "evaluation", "reward", "tasks")


@click.command()
@click.argument("run_or_model")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--host", "address", default="127.0.0.1", show_default=True, help="Address on which the server listens.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 picks a free one."
)
@click.option("--name", help="Name of the model for clients; defaults to the last part of RUN_OR_MODEL.")
@click.option("--checkpoint", metavar="step-N", help="Checkpoint of the run [the last one].")
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="Append episodes to this file, for the `data` of a stage.",
)
@click.option(
    "--judge",
    is_flag=True,
    help="Score episodes without a reward by the reward of the run.",
)
@click.option(
    "--redact",
    metavar="NAME",
    help="Redactor of each stored text: `sensitive` (secrets, e-mail addresses, phone numbers) or module:function.",
)
@click.option("--annotations", "people", type=click.Path(path_type=Path), metavar="FILE",
              help="Serve the human-in-the-loop page at / and store its queue and annotations in FILE.")  # fmt: skip
@click.option("--keys", type=click.Path(path_type=Path),
              help="File with API keys. Without it only requests from localhost are accepted.")  # fmt: skip
@click.option("--new-key", "made", metavar="NAME", help="Create a key in the file of --keys, print it and exit.")
@click.option("--role", type=click.Choice(ROLES), default="use", show_default=True, help="Role of the new key.")
@click.option("--requests-per-minute", "requests_a_minute", type=click.IntRange(min=1),
              help="Maximum requests per minute for the new key.")  # fmt: skip
@click.option("--tokens-per-minute", "tokens_a_minute", type=click.IntRange(min=1),
              help="Maximum sampled tokens per minute for the new key.")  # fmt: skip
@click.option("--max-concurrent", "at_once", type=click.IntRange(min=1),
              help="Maximum concurrent requests for the new key.")  # fmt: skip
@click.option("--max-bytes", "most_bytes", type=click.IntRange(min=1), help="Maximum request size for the new key.")
@click.option("--idle-seconds", type=click.FloatRange(min=1), default=3600.0, show_default=True,
              help="Close an episode after this many seconds without a request.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed for sampling.")
@access_log_option("-")
def serve(
    run_or_model: str,
    overrides: tuple[str, ...],
    address: str,
    port: int,
    name: str | None,
    checkpoint: str | None,
    record: Path | None,
    judge: bool,
    redact: str | None,
    people: Path | None,
    keys: Path | None,
    made: str | None,
    role: str,
    requests_a_minute: int | None,
    tokens_a_minute: int | None,
    at_once: int | None,
    most_bytes: int | None,
    idle_seconds: float,
    seed: int,
    access_log: str,
) -> None:
    """Serve RUN_OR_MODEL, a run at its last checkpoint, a checkpoint folder or a model, until stopped.

    Agents are given `base_url=http://HOST:PORT/v1`, those of Anthropic's client the same without `/v1`. With
    --record what they say is kept token by token, and `POST /v1/episodes/ID/reward`, or `whetstone.episode` in Python,
    says what it was worth. `whetstone why FILE` says which tokens of it can be trained.
    """
    if made is not None:
        limits = {"requests_a_minute": requests_a_minute, "tokens_a_minute": tokens_a_minute}
        limits |= {"at_once": at_once, "most_bytes": most_bytes}
        click.echo(_made(keys, made, role, limits))
        return
    known = keys_for(address, keys)
    if redact is not None and record is None and people is None:
        raise RecipeError("--redact: requires --record FILE or --annotations FILE")
    if judge and record is None:
        raise RecipeError("--judge: nothing is kept without --record FILE")
    name = name or Path(run_or_model).name
    run_or_model = at_checkpoint(run_or_model, checkpoint)
    if judge and not is_run_or_checkpoint(Path(run_or_model)):
        raise RecipeError(f"--judge: {run_or_model} is a model, and has no reward; name a run")
    unread = [key for key in _OF_EPISODES if not (judge and key == "reward")]
    say_unread(overrides, (*LEARNING, *unread), "what is said is not learned from, nor played here")
    start_access_log(access_log)
    with bound_to(address, port) as bound:
        asyncio.run(
            _serve(run_or_model, overrides, bound, name, record, judge, redact, people, known, idle_seconds, seed)
        )


def _made(keys: Path | None, name: str, role: str, limits: dict[str, int | None]) -> str:
    if keys is None:
        raise RecipeError("--new-key: into which file? (--keys FILE)")
    return whetstone.serving.new_key(keys, name, role, **limits)


async def _serve(
    run_or_model: str,
    overrides: tuple[str, ...],
    bound: socket.socket,
    name: str,
    record: Path | None,
    judge: bool,
    redact: str | None,
    people: Path | None,
    keys: Keys,
    idle_seconds: float,
    seed: int,
) -> None:
    assembly = assembled(run_or_model, overrides, None)
    engine = assembly.engine(heard=lambda line: click.echo(line, err=True))
    taken_out = find_redactor(redact) if redact is not None else None
    redacting = Redacting(assembly.chat, taken_out) if taken_out is not None else None
    writer = RecordFile(record, redacting) if record is not None else None
    judging = _judging(assembly, writer) if judge and writer is not None else None
    try:
        episodes = whetstone.serving.Episodes(writer, idle_seconds=idle_seconds, judging=judging)
        speaker = whetstone.serving.Speaker(
            engine, assembly.chat, context_length=assembly.policy.context_length, seed=seed
        )
        behind = whetstone.serving.Server(speaker, episodes, name=name, keys=keys)
        also = people_routes(behind, PeopleQueue(people, redact=taken_out)) if people is not None else ()
        server = runner(whetstone.serving.application(behind, also=also))
        keep_what_is_loaded()
        click.echo(f"{name} at {served_at(bound)}")
        await server.serve(sockets=[bound])
    finally:
        if judging is not None:
            await judging.settled()
        if writer is not None:
            click.echo(f"{record}: {writer.count} episodes")
        await engine.close()


def _judging(assembly: Assembly, over: Callable[[Trajectory], None]) -> Judging:
    seconds = assembly.resolved.recipe.rollout.reward_timeout_seconds
    return Judging(assembly.reward, over, seconds=seconds, say=lambda line: click.echo(line, err=True))


class RecordFile:
    """A file of trajectories, one a line, each whole on the disk before the next.

    Args:
        redacting: What is done to each before; None: nothing.
    """

    def __init__(self, path: Path, redacting: Callable[[Trajectory], Trajectory] | None = None) -> None:
        self.path, self.count, self._redacting = path, 0, redacting

    def __call__(self, trajectory: Trajectory) -> None:
        if self._redacting is not None:
            try:
                trajectory = self._redacting(trajectory)
            except Exception as failure:  # somebody's own function; what it did not read through is not kept
                click.echo(f"{trajectory.id}: not kept, since --redact failed: {explained(failure)}", err=True)
                return
        with open(self.path, "ab") as file:
            file.write(encoded_trajectory(trajectory) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.count += 1
