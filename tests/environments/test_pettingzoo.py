"""PettingZoo through seats: rewards are those of the environment itself; illegal moves are handled as documented."""

import asyncio
import random

import pytest

from support.episodes import CHAT, LIMITS, Says
from whetstone.chat import assistant
from whetstone.environments.adapters.pettingzoo import (
    PettingZooTasks,
    describe_observation,
    make_pettingzoo,
    play_pettingzoo,
)
from whetstone.environments.protocol import SeatRequest
from whetstone.errors import RecipeError
from whetstone.reporting import Progress
from whetstone.rewards import verdict
from whetstone.rollout import Collector, GroupPlan
from whetstone.rollout.strategies import SelfPlay
from whetstone.training import evaluate_opponents, load_agent
from whetstone.trajectory import EndReason, Task

pytest.importorskip("pettingzoo", reason="install it with: pip install 'pettingzoo>=1.27' pygame-ce")

TICTACTOE, CONNECT, ROCK = "classic/tictactoe-v3", "classic/connect_four-v3", "classic/rps-v2"


def play_directly(id, choose, seed, options=None):
    """Return the rewards of each agent per own turn, by a loop of PettingZoo's own interface (`agent_iter`)."""
    env = make_pettingzoo(id, options)
    env.reset(seed=seed)
    rewards = {agent: [] for agent in env.possible_agents}
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        rewards[agent].append(reward)
        if terminated or truncated:
            env.step(None)
            continue
        mask = observation["action_mask"] if isinstance(observation, dict) else info.get("action_mask")
        legal = range(env.action_space(agent).n) if mask is None else mask.nonzero()[0].tolist()
        env.step(choose(agent, legal))
    return {agent: each[1:] for agent, each in rewards.items()}  # nothing is earned before the first turn


async def play_seats(id, choose, seed, options=None, **more):
    """Return the rewards of each seat per own turn and its verdict, by one `Seat` per agent at one table."""
    roles = play_pettingzoo(id=id, options=options).roles
    task = Task("t", "", {"id": id, "seed": seed})
    results = {}

    async def play(role):
        seat = play_pettingzoo(id=id, options=options, actions="text", **more)
        seat.take_seat(SeatRequest(role, f"table-{id}-{seed}", seed))
        first = await seat.reset(task, seed=0)
        text, rewards = first.messages[0].text, []
        while True:
            moves = text.rsplit("moves: ", 1)[-1].split()
            result = await seat.step(assistant(choose(role, moves)))
            rewards.append(result.reward)
            text = result.observation.messages[0].text
            if result.ended is not None:
                break
        results[role] = (rewards, await seat.verdict(), text)
        await seat.close()

    await asyncio.gather(*map(play, roles))
    return results


def scripted(seed):
    """Return a chooser that takes the same moves on both sides: the k-th own move of an agent is a fixed random one."""
    draws = {}

    def choose(agent, legal):
        draw = draws.setdefault(agent, random.Random(f"{seed} {agent}"))
        return legal[draw.randrange(len(legal))]

    return choose


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("id", "options"), [(TICTACTOE, None), (CONNECT, None), (ROCK, {"max_cycles": 4})])
def test_scripted_games_have_the_rewards_of_the_environment_itself(id, options, seed):
    direct = play_directly(id, scripted(seed), seed, options)
    played = asyncio.run(play_seats(id, scripted(seed), seed, options))
    assert {role: rewards for role, (rewards, _, _) in played.items()} == direct
    for role, (rewards, result, text) in played.items():
        assert result["return"] == sum(direct[role]) == sum(rewards)
        assert result["score"] == pytest.approx(min(1, max(0, (sum(rewards) + 1) / 2)))
        assert text == f"over: {sum(rewards):g}"


def column(number):
    return lambda moment: assistant(str(number))


def test_refused_moves_change_nothing_and_passed_moves_lose():
    async def first_moves(**options):
        seat = play_pettingzoo(id=TICTACTOE, actions="text", **options)
        seat.take_seat(SeatRequest("player_1", "", 3))
        await seat.reset(Task("t", ""), seed=0)
        await seat.step(assistant("4"))
        before = seat.admissible()
        results = [await seat.step(assistant(text)) for text in ("4", "the middle", "99")]
        verdicts = await seat.verdict()
        after = seat.admissible()
        await seat.close()
        return before, results, after, verdicts

    before, results, after, verdicts = asyncio.run(first_moves())
    assert before == after
    assert len(before) == 7
    assert "4" not in before
    assert all(result.observation.messages[0].text.startswith("no such move. ") for result in results)
    assert {result.ended for result in results} == {None}
    assert (verdicts["success"], verdicts["score"]) == (False, 0.0)  # unfinished

    async def passed():
        seat = play_pettingzoo(id=TICTACTOE, actions="text", illegal="pass")
        seat.take_seat(SeatRequest("player_1", "", 3))
        await seat.reset(Task("t", ""), seed=0)
        await seat.step(assistant("4"))
        unreadable = await seat.step(assistant("the middle"))
        lost = await seat.step(assistant("4"))
        result = await seat.verdict()
        await seat.close()
        return unreadable, lost, result

    unreadable, lost, result = asyncio.run(passed())
    assert unreadable.ended is None
    assert lost.ended is EndReason.TERMINATED
    assert (lost.reward, result) == (-1, {"success": False, "score": 0.0, "return": -1.0})


def test_self_play_has_a_trajectory_and_a_reward_per_seat():
    """First player: the column 0; second: the column 1. The first one has four in a column first."""
    table = Collector(
        environment=lambda: play_pettingzoo(id=CONNECT, actions="text"),
        actor=Says(lambda moment: assistant("0" if "......." in moment.conversation[0].text.splitlines()[-2] else "1")),
        chat=CHAT,
        reward=verdict,
        limits=LIMITS,
        max_in_flight=4,
    )
    task = PettingZooTasks(id=CONNECT).held_out(1)[0]
    strategy = SelfPlay(group_size=1, roles=["player_0", "player_1"])
    first, second = asyncio.run(table.group(GroupPlan(task, seed=1), strategy)).trajectories
    assert {first.ended, second.ended} == {EndReason.TERMINATED}
    assert (first.solved, second.solved) == (True, False)
    assert (first.final["return"], second.final["return"]) == (1, -1)
    assert [turn.reward for turn in first.turns] == [0, 0, 0, 1]
    assert first.opening[0].text.splitlines()[-1] == "moves: 0 1 2 3 4 5 6"


def first_listed(conversation, tools, seed):
    return conversation[-1].text.rsplit("moves: ", 1)[-1].split()[0]


def test_recipe_is_evaluated_against_an_opponent_in_both_seats():
    """Both players take the first free square: 0, 1, 2, …; the first player has 2, 4 and 6, a line."""
    tiny = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
    recipe = {
        "tasks": {"source": "pettingzoo", "id": TICTACTOE},
        "environment": {"name": "pettingzoo", "id": TICTACTOE, "actions": "text", "max_turns": 6},
        "reward": {"name": "verdict", "pays": "score"},
        "policy": {"tiny": tiny},
        "reinforcement": {},
        "evaluation": {"episodes": 2},
    }
    player = f"{__name__}:first_listed"
    results, _ = evaluate_opponents(load_agent(recipe, policy=player), [player], progress=Progress(quiet=True))
    assert {seat: each.reward for seat, each in results[player].seats.items()} == {"player_1": 1.0, "player_2": 0.0}
    assert (results[player].reward, results[player].success, results[player].episodes) == (0.5, 0.5, 4)


def test_seats_that_no_episode_takes_play_random_legal_moves():
    async def play(seed):
        seat = play_pettingzoo(id=CONNECT, actions="text")
        text = (await seat.reset(Task("t", "", {"seed": seed}), seed=0)).messages[0].text
        texts = [text]
        while (result := await seat.step(assistant(text.rsplit("moves: ", 1)[-1].split()[0]))).ended is None:
            text = result.observation.messages[0].text
            texts.append(text)
        await seat.close()
        return texts

    one, repeated, other = (asyncio.run(play(seed)) for seed in (1, 1, 2))
    assert one == repeated
    assert one != other


def test_parallel_environments_and_functions_are_accepted_and_others_refused():
    assert play_pettingzoo(id=f"{__name__}:make_parallel").roles == ("player_0", "player_1")
    for id, message in (
        ("classic/tictactoe-v9", r"pettingzoo: no environment named classic/tictactoe-v9; did you mean"),
        (f"{__name__}:make_nothing", r"cannot be created: AttributeError"),
    ):
        with pytest.raises(RecipeError, match=message) as refused:
            play_pettingzoo(id=id)
        assert "\n" not in str(refused.value)
    with pytest.raises(RecipeError, match="the first must be below the second"):
        play_pettingzoo(id=ROCK, returns=(1.0, 1.0))


def make_parallel():
    from pettingzoo import make

    return make("parallel", "classic/rps-v2", max_cycles=2)


def make_nothing():
    return object()


def test_boards_and_tables_are_texts():
    env = make_pettingzoo(TICTACTOE)
    env.reset(seed=0)
    for move in (4, 0):
        env.step(move)
    assert describe_observation(env.observe("player_1")) == "o..\n.x.\n..."
    assert describe_observation(env.observe("player_2")) == "x..\n.o.\n..."
    assert describe_observation(3) == "3"
