"""`whetstone serve`: serve a policy over the OpenAI and Anthropic APIs, and record all calls."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

import whetstone.serving
import whetstone.serving.tinker
from whetstone.cache_dir import cache_dir
from whetstone.cli.policy_argument import is_run_or_checkpoint, load_policy_argument, member_option, resolve_checkpoint
from whetstone.cli.server_options import access_log_option, bind_socket, load_api_keys, server_url, start_access_log
from whetstone.cli.unused_overrides import LEARNING, warn_unused_overrides
from whetstone.data.redacting import Redacting
from whetstone.data.sensitive import find_redactor
from whetstone.errors import RecipeError, summarize_exception
from whetstone.garbage import exclude_present_objects
from whetstone.serving.api_keys import ROLES
from whetstone.serving.http_server import build_server
from whetstone.serving.human_in_the_loop import PeopleQueue, people_routes
from whetstone.serving.reward_scoring import RewardScorer
from whetstone.trajectory import Trajectory
from whetstone.trajectory_json import encode_trajectory

if TYPE_CHECKING:
    from whetstone.assembly import RunComponents
    from whetstone.serving import Keys


_OF_EPISODES = ("rollout", "evaluation", "reward", "tasks")


@click.command("serve")
@click.argument("run_or_model")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--host", "address", default="127.0.0.1", show_default=True, help="Address on which the server listens.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 picks a free one."
)
@click.option("--name", help="Name of the model for clients; defaults to the last part of RUN_OR_MODEL.")
@click.option("--checkpoint", metavar="step-N", help="Checkpoint of the run [the last one].")
@member_option
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
@click.option("--new-key", "new_key", metavar="NAME", help="Create a key in the file of --keys, print it and exit.")
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
@click.option("--tinker", is_flag=True, help="Also serve the Tinker API: train LoRA adapters with the package tinker.")
@click.option("--tinker-states", "states", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Folder of saved states of Tinker clients [the cache folder, by name of the model].")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed for sampling.")
@access_log_option("-")
def serve_command(
    run_or_model: str,
    overrides: tuple[str, ...],
    address: str,
    port: int,
    name: str | None,
    checkpoint: str | None,
    member: str | None,
    record: Path | None,
    judge: bool,
    redact: str | None,
    people: Path | None,
    keys: Path | None,
    new_key: str | None,
    role: str,
    requests_a_minute: int | None,
    tokens_a_minute: int | None,
    at_once: int | None,
    most_bytes: int | None,
    idle_seconds: float,
    tinker: bool,
    states: Path | None,
    seed: int,
    access_log: str,
) -> None:
    """Serve RUN_OR_MODEL, a run at its last checkpoint, a checkpoint folder or a model, until stopped.

    OpenAI clients use `base_url=http://HOST:PORT/v1`, Anthropic clients the same without `/v1`. With --record, all
    sampled tokens are stored. Set the reward of an episode with `POST /v1/episodes/ID/reward`, or `whetstone.episode`
    in Python. `whetstone why FILE` shows which tokens can be trained.
    """
    if new_key is not None:
        limits = {"requests_a_minute": requests_a_minute, "tokens_a_minute": tokens_a_minute}
        limits |= {"at_once": at_once, "most_bytes": most_bytes}
        click.echo(_create_key(keys, new_key, role, limits))
        return
    known = load_api_keys(address, keys)
    if redact is not None and record is None and people is None:
        raise RecipeError("--redact: requires --record FILE or --annotations FILE")
    if judge and record is None:
        raise RecipeError("--judge: requires --record FILE")
    if states is not None and not tinker:
        raise RecipeError("--tinker-states: requires --tinker")
    name = name or Path(run_or_model).name
    states = states or cache_dir() / "tinker" / name.strip("/").replace("/", "--")
    run_or_model = resolve_checkpoint(run_or_model, checkpoint)
    if judge and not is_run_or_checkpoint(Path(run_or_model)):
        raise RecipeError(f"--judge: {run_or_model} is a model without a reward; name a run")
    unread = [key for key in _OF_EPISODES if not (judge and key == "reward")]
    warn_unused_overrides(overrides, (*LEARNING, *unread), "served conversations are not trained on")
    start_access_log(access_log)
    with bind_socket(address, port) as bound:
        asyncio.run(
            _serve(
                run_or_model,
                overrides,
                member,
                bound,
                name,
                record,
                judge,
                redact,
                people,
                known,
                idle_seconds,
                seed,
                states if tinker else None,
            )
        )


def _create_key(keys: Path | None, name: str, role: str, limits: dict[str, int | None]) -> str:
    if keys is None:
        raise RecipeError("--new-key: requires --keys FILE, the file that stores the new key")
    return whetstone.serving.create_key(keys, name, role, **limits)


async def _serve(
    run_or_model: str,
    overrides: tuple[str, ...],
    member: str | None,
    bound: socket.socket,
    name: str,
    record: Path | None,
    judge: bool,
    redact: str | None,
    people: Path | None,
    keys: Keys,
    idle_seconds: float,
    seed: int,
    states: Path | None,
) -> None:
    assembly = load_policy_argument(run_or_model, overrides, None, member=member)
    engine = assembly.build_engine(heard=lambda line: click.echo(line, err=True))
    taken_out = find_redactor(redact) if redact is not None else None
    redacting = Redacting(assembly.chat, taken_out) if taken_out is not None else None
    writer = RecordFile(record, redacting) if record is not None else None
    judging = _judging(assembly, writer) if judge and writer is not None else None
    trained = None
    try:
        episodes = whetstone.serving.EpisodeRegistry(writer, idle_seconds=idle_seconds, judging=judging)
        completions = whetstone.serving.CompletionService(
            engine, assembly.chat, context_length=assembly.policy.context_length, seed=seed
        )
        served = whetstone.serving.Server(completions, episodes, name=name, keys=keys)
        also = people_routes(served, PeopleQueue(people, redact=taken_out)) if people is not None else ()
        if states is not None:
            trained = whetstone.serving.tinker.TinkerService(
                assembly.policy, engine, name=name, states=states, seed=seed
            )
            click.echo(f"states of Tinker clients in {states}")
            also = (*also, *whetstone.serving.tinker.tinker_routes(served, trained))
        server = build_server(whetstone.serving.build_serving_app(served, extra_routes=also))
        exclude_present_objects()
        click.echo(f"{name} at {server_url(bound)}")
        await server.serve(sockets=[bound])
    finally:
        if judging is not None:
            await judging.wait_idle()
        if writer is not None:
            click.echo(f"{record}: {writer.count} episodes")
        if trained is not None:
            await trained.close()
        await engine.close()


def _judging(assembly: RunComponents, over: Callable[[Trajectory], None]) -> RewardScorer:
    seconds = assembly.resolved.recipe.rollout.reward_timeout_seconds
    return RewardScorer(assembly.reward, over, seconds=seconds, say=lambda line: click.echo(line, err=True))


class RecordFile:
    """File of trajectories, one per line, each flushed to disk before the next.

    `whetstone serve --record FILE` appends to it.

    Args:
        path: Path of the file.
        redacting: Function applied to each trajectory before it is written; None: none.
    """

    def __init__(self, path: Path, redacting: Callable[[Trajectory], Trajectory] | None = None) -> None:
        self.path, self.count, self._redacting = path, 0, redacting

    def __call__(self, trajectory: Trajectory) -> None:
        if self._redacting is not None:
            try:
                trajectory = self._redacting(trajectory)
            except Exception as failure:  # a custom function failed; without redaction, nothing is stored
                click.echo(
                    f"{trajectory.id}: not kept, since --redact failed: {summarize_exception(failure)}", err=True
                )
                return
        with open(self.path, "ab") as file:
            file.write(encode_trajectory(trajectory) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.count += 1
