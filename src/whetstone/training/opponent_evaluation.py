"""Evaluation of an agent against opponents in a game with seats (`whetstone evaluate RUN --opponent NAME`).

    opponent × seat of the agent → games of the held-out tasks → episodes of the agent → result by opponent and seat

The agent plays each seat equally often on the same tasks and seeds, so that the advantage of a seat, such as the first
move, cancels in the result.

Note:
    A game whose opponent fails (a server, or an exception of its function) is not a win: it has no score and is
    counted. An opponent that ends its episode by a limit leaves the game, and the environment judges the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whetstone.assembly import RunComponents, assemble
from whetstone.assembly.frozen_models import frozen_models
from whetstone.assembly.players import build_player, is_player
from whetstone.assembly.seats import open_frozen_member, shares_vocabulary
from whetstone.capabilities import implements_protocol
from whetstone.environments.protocol import Seats, TakesSeat
from whetstone.errors import PolicyError, RecipeError, RunDirectoryError
from whetstone.evaluation import Evaluation, MemberResult, summarize_episodes
from whetstone.inference import Member
from whetstone.own_loop import run_sync
from whetstone.record import find_checkpoint, run_of_checkpoint, run_recipe
from whetstone.record.run_directory import write_json
from whetstone.reporting import Progress
from whetstone.rollout import Actor, Collector, FrozenActor, GroupPlan, Independent, ModelActor, make_plans
from whetstone.rollout.protocol import Roller
from whetstone.rollout.strategies import SelfPlay
from whetstone.seeding import derive_seed
from whetstone.training.agent_evaluation import EvaluatedAgent, open_agent
from whetstone.training.cost_estimate import count_evaluation
from whetstone.training.evaluation_loop import EvaluationRecord, evaluation_protocol, play_groups, weights_digest
from whetstone.training.final_checkpoint import final_checkpoint
from whetstone.training.permission import Ask, permit_run
from whetstone.trajectory import EndReason, Group, Task, Trajectory

SCRIPT = "script"
"""Name of the opponent that is the game's own script."""
_CHECKPOINT = re.compile(r"(?:[^/]+/)?(?:step-)?\d+")


@dataclass(frozen=True, slots=True)
class Opponent:
    """Player of all seats that the agent does not play."""

    name: str
    """Name as the user wrote it."""
    identity: str
    """Player, or a digest of the weights; stored with the evaluation."""
    actor: Actor | None = None
    """Actor of the other seats; None: the game's script."""
    member: Member | None = None
    """Frozen model of the actor, which is closed after the evaluation; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatGames:
    """Strategy that plays games from one seat; its groups have only the episodes of this seat."""

    seat: str
    """Seat of the agent."""
    roles: Sequence[str]
    """All seats of the game; empty: the game's script plays the other seats."""
    group_size: int
    """Number of games per task."""

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Play the games of one task; see `Strategy.__call__`."""
        if not self.roles:
            return await Independent(group_size=self.group_size, seat=self.seat)(task, roller)
        group = await SelfPlay(group_size=self.group_size, roles=self.roles)(task, roller)
        size = len(self.roles)
        games = [group.trajectories[k : k + size] for k in range(0, len(group.trajectories), size)]
        return replace(group, trajectories=tuple(select_seat(game, self.seat) for game in games))


def select_seat(game: Sequence[Trajectory], seat: str) -> Trajectory:
    """Return the episode of a seat in a game; it has no score if another player failed.

    Args:
        game: Episodes of all seats of one game.
        seat: Seat of the agent.
    """
    own = next(each for each in game if each.role == seat)
    failed = next((each for each in game if each is not own and not each.ended.valid), None)
    if failed is None or not own.ended.valid:
        return own
    error = f"the opponent failed: {failed.error or failed.ended}"
    return replace(own, ended=EndReason.INFRASTRUCTURE, error=error, score=None)


def evaluate_opponents(
    agent: EvaluatedAgent,
    opponents: Sequence[str],
    *,
    seed: int | None = None,
    record: EvaluationRecord | None = None,
    progress: Progress,
    log: Callable[[str], None] | None = None,
    ask: Ask | None = None,
) -> tuple[dict[str, Evaluation], dict[str, Any]]:
    """Evaluate an agent against each opponent, on held-out tasks of a game with seats.

    Each task is played `evaluation.samples` times from each seat. The opponent plays all other seats, at the
    temperature of the evaluation. Components of the recipe around an episode, such as context transforms, apply to all
    seats.

    Args:
        agent: Agent and recipe, from `load_agent`; overrides of environment and tasks select another game.
        opponents: `script` (the game's own player), `person`, `package.module:function`, a run or checkpoint, a model
            folder, or a checkpoint of the agent's run, such as `step-50`.
        seed: Random seed; None: the recipe's.
        record: Record of the episodes, from which an interrupted evaluation resumes; None: episodes are not stored.
        progress: Progress display.
        log: Receives lines about slow operations and skipped data; None: `progress` shows them.
        ask: Asks for permission to call tools that change something; see `train`.

    Returns:
        Result by opponent, with `seats`; and all settings that determine the evaluation.

    Raises:
        WhetstoneError: If the game has no seats, or an opponent does not exist.
    """
    resolved, say = agent.resolved, log or progress.say
    roles = find_game_seats(assemble(resolved))
    parts = [(resolved, lambda recipe: count_evaluation(recipe) * len(opponents) * len(roles))]
    permitted = permit_run(resolved, parts, ask=ask, log=say, measured=agent.run_dir)
    assembly = assemble(permitted, agent.policy, agent.memory, say=say)
    built = [build_opponent(assembly, name, agent.run_dir) for name in dict.fromkeys(opponents)]
    seed = resolved.recipe.seed if seed is None else seed
    return run_sync(lambda: _play_opponents(assembly, agent, built, roles, seed, record, progress))


def find_game_seats(assembly: RunComponents) -> tuple[str, ...]:
    """Return the seats of the game of a recipe.

    Raises:
        RecipeError: If the environment has fewer than two seats, or evaluations search.
    """
    resolved, environment = assembly.resolved, assembly.environment()
    roles = tuple(environment.roles) if implements_protocol(environment, Seats) else ()
    if not roles:  # a remote environment does not list its seats
        roles = tuple(resolved.recipe.rollout.strategy.options.get("roles", ()))
    if len(roles) < 2 or not implements_protocol(environment, TakesSeat):
        name = resolved.recipe.environment.name
        raise RecipeError(
            f'--opponent: environment "{name}" has no second seat for an opponent; choose a game with seats, such as '
            "environment.name=bargaining tasks.source=bargaining"
        )
    if assembly.search_strategy is not None:
        raise RecipeError("--opponent: a game against an opponent cannot be searched; set evaluation.strategy=null")
    return roles


def build_opponent(assembly: RunComponents, name: str, run_dir: Path | None) -> Opponent:
    """Build an opponent by its name.

    A model with the tokens and chat settings of the agent is sampled token by token as in training; another model
    reads the messages of its seat in its own chat template.

    Args:
        assembly: Components of the evaluation.
        name: Name of the opponent; see `evaluate_opponents`.
        run_dir: Run of the agent, or one of its checkpoints; None: the agent is not from a run.

    Raises:
        WhetstoneError: If no opponent has this name, or its model cannot be loaded.
    """
    if name == SCRIPT:
        return Opponent(name, name)
    if is_player(name) and name != "expert":
        return Opponent(name, name, build_player(assembly, name))
    path, recipe = Path(name), assembly.resolved.recipe
    if not path.is_dir():
        run = (run_of_checkpoint(run_dir) or run_dir) if run_dir is not None else None
        if run is None or not _CHECKPOINT.fullmatch(name):
            of_run = f", or a checkpoint of {run}, such as step-50" if run is not None else ""
            problem = "plays one seat only" if name == "expert" else "no player, run or model folder has this name"
            raise RecipeError(
                f"--opponent {name}: {problem}; write script, person, package.module:function, the path of a run, "
                f"checkpoint or model{of_run}"
            )
        try:
            path = find_checkpoint(run, name)
        except RunDirectoryError as error:
            raise RecipeError(f"--opponent {name}: {error}") from None
    owner = run_of_checkpoint(path) or path
    chat = run_recipe(owner).recipe.chat if (owner / "recipe.yaml").is_file() else recipe.chat
    folder = final_checkpoint(path)[0] if (path / "recipe.yaml").is_file() else path
    member = open_frozen_member(assembly, name, folder)
    try:
        identity = f"weights {weights_digest(member.policy)}"
    except PolicyError as error:
        raise RecipeError(f"--opponent {name}: {error}") from None
    temperature = recipe.evaluation.temperature
    if chat == recipe.chat and shares_vocabulary(assembly, member.policy):
        own = assembly.policy_actor(member.engine, temperature=temperature, member="")
        return Opponent(name, identity, FrozenActor(own), member)
    settings = {"path": str(path), "temperature": temperature, "max_new_tokens": recipe.rollout.max_new_tokens}
    model = frozen_models(assembly.resolved.with_changes({"models": {"opponent": settings}}))["opponent"]
    return Opponent(name, identity, ModelActor(model, assembly.chat))


async def _play_opponents(
    assembly: RunComponents,
    agent: EvaluatedAgent,
    opponents: Sequence[Opponent],
    roles: Sequence[str],
    seed: int,
    record: EvaluationRecord | None,
    progress: Progress,
) -> tuple[dict[str, Evaluation], dict[str, Any]]:
    settings = assembly.resolved.recipe.evaluation
    samples, temperature = settings.samples, settings.temperature
    tasks = list(assembly.source.held_out(settings.episodes))
    names = [{"name": each.name, "agent": each.identity} for each in opponents]
    protocol = evaluation_protocol(
        assembly, tasks, samples=samples, temperature=temperature, seed=seed, who=agent.other_name
    ) | {"seats": list(roles), "opponents": names}
    if record is not None:
        record.open(protocol)
    results: dict[str, Evaluation] = {}
    try:
        async with open_agent(assembly, agent) as (engine, actor):
            collector = assembly.build_collector(actor or assembly.policy_actor(engine, temperature=temperature))
            for number, opponent in enumerate(opponents):
                own = record.in_subfolder(f"opponent-{number}") if record is not None else None
                plans = {
                    seat: list(
                        make_plans(tasks, seed=derive_seed(seed, "evaluation"), name=f"opponent-{number}/{seat}/")
                    )
                    for seat in roles
                }
                with progress.stage(f"against {opponent.name}", len(tasks) * len(roles)) as bar:
                    results[opponent.name] = await _play_seats(
                        collector, opponent, plans, samples, temperature, own, lambda group: bar.advance({})
                    )
    finally:
        for each in opponents:
            if each.member is not None:
                await each.member.close()
    if record is not None:
        listed = {name: result.to_json() for name, result in results.items()}
        write_json(record.folder / "evaluation.json", {"opponents": listed})
    return results, protocol


async def _play_seats(
    collector: Collector,
    opponent: Opponent,
    plans: Mapping[str, Sequence[GroupPlan]],
    samples: int,
    temperature: float,
    record: EvaluationRecord | None,
    on_group: Callable[[Group], None],
) -> Evaluation:
    """Play the planned games from each seat against one opponent; return the result over all seats."""
    roles, groups, seats = tuple(plans), list[Group](), {}
    for seat, planned in plans.items():
        others = {role: opponent.actor for role in roles if role != seat and opponent.actor is not None}
        table = replace(collector, others=others, max_in_flight=max(collector.max_in_flight, len(roles)))
        strategy = SeatGames(seat=seat, roles=roles if others else (), group_size=samples)
        seat_record = record.in_subfolder(seat) if record is not None else None
        played = await play_groups(table, planned, strategy, seat_record, on_group)
        result = summarize_episodes(played, temperature=temperature)
        if seat_record is not None:
            seat_record.finish(result, played)
        seats[seat] = MemberResult.from_evaluation(seat, result)
        groups += played
    return replace(summarize_episodes(groups, temperature=temperature), seats=seats)
