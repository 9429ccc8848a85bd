"""Seats: several policies in one game, one trajectory per role, and advantages within a role."""

import asyncio
import json

import pytest

from support.episodes import CHAT, LIMITS, Says
from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.chat import assistant, user
from whetstone.environments import Observation, StepResult
from whetstone.environments.built_in.bargaining import Dealing, DealingTasks
from whetstone.environments.multi_agent import Seat, _tables
from whetstone.environments.protocol import SeatRequest
from whetstone.errors import EpisodeError, RecipeError
from whetstone.learning.columns import Columns
from whetstone.learning.token_index import index_groups
from whetstone.plugins import OptionError
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.rewards import verdict
from whetstone.rollout import Collector, EpisodeLimits, GroupPlan
from whetstone.rollout.strategies import Independent, SelfPlay
from whetstone.training import train
from whetstone.trajectory import Author, EndReason, RemovalScope, Task

DEAL = Task("d", "", {"worth": {"buyer": 40, "seller": 20}, "rounds": 3})


def collector(speak, *, limits=LIMITS, most=64):
    return Collector(
        environment=lambda: Seat(Dealing, actions="text"),
        actor=Says(speak),
        chat=CHAT,
        reward=verdict,
        limits=limits,
        max_in_flight=most,
    )


def bargaining(moment):
    """Return the actions of sellers that ask for 31, and of buyers that accept."""
    return assistant("accept" if "Buy" in moment.conversation[0].text else "offer 31")


def played(speak, *, games=3, train=None, **options):
    strategy = SelfPlay(group_size=games, roles=["buyer", "seller"], train=train)
    return asyncio.run(collector(speak, **options).group(GroupPlan(DEAL, seed=1), strategy))


def test_two_roles_in_one_game_are_two_trajectories():
    group = played(bargaining)
    assert [t.role for t in group.trajectories] == ["buyer", "seller"] * 3
    assert {t.ended for t in group.trajectories} == {EndReason.TERMINATED}
    buyer, seller = group.trajectories[:2]
    assert buyer.opening[0].text.endswith("the seller offers 31")
    assert seller.turns[0].observation[0].text == "deal at 31"
    # of a surplus of 20 the buyer has 9, the seller 11
    assert (buyer.score.parts["score"], seller.score.parts["score"]) == (0.45, 0.55)
    assert not _tables


@pytest.mark.parametrize("role", ["buyer", "seller"])
def test_one_seat_is_played_against_the_script_in_a_game_of_its_own(role):
    strategy = Independent(group_size=2, seat=role)
    group = asyncio.run(collector(bargaining).group(GroupPlan(DEAL, seed=1), strategy))
    assert [t.role for t in group.trajectories] == [role] * 2
    assert {t.ended for t in group.trajectories} == {EndReason.TERMINATED}
    # the scripted seller asks for 34 first; the scripted buyer offers 26, and then takes 31, which is less than 32
    price = {"buyer": 34, "seller": 31}[role]
    assert {t.turns[-1].observation[0].text for t in group.trajectories} == {f"deal at {price}"}
    assert not _tables


def test_messages_of_the_other_role_are_partner_turns_and_not_trained():
    group = played(bargaining, games=1)
    for trajectory in group.trajectories:
        assert {author for turn in trajectory.turns for author in turn.context.authors} == {Author.OTHER_AGENT}
        (segment,) = trajectory.segments()
        trained = {a for a, mask in zip(segment.tokens.authors, segment.action_mask, strict=True) if mask}
        assert trained == {Author.POLICY}


def test_roles_are_compared_within_the_role():
    group = played(bargaining)
    columns = Columns(index_groups([group]))
    assert columns["group"].tolist() == [0, 1] * 3
    assert columns["outcomes"].tolist() == [1.0, 1.0] * 3


def test_untrained_roles_are_excluded():
    group = played(bargaining, train=["seller"])
    assert {t.role: t.removal for t in group.trajectories} == {"buyer": RemovalScope.BEFORE_BASELINE, "seller": None}
    assert [t.role for t in group.counted] == ["seller"] * 3


def test_role_that_leaves_ends_the_episode_of_the_other():
    """Let the buyer reach its turn limit; the seller receives a notice, and its episode is truncated."""
    haggling = played(
        lambda moment: assistant("offer 1" if "Buy" in moment.conversation[0].text else "offer 99"),
        games=1,
        limits=EpisodeLimits(max_turns=1, context_length=2000, timeout_seconds=20),
    )
    buyer, seller = haggling.trajectories
    assert {buyer.ended, seller.ended} <= {EndReason.MAX_TURNS, EndReason.TRUNCATED}
    assert not _tables


def test_failing_seat_ends_the_episode_of_the_other():
    def speak(moment):
        if "Buy" in moment.conversation[0].text:
            raise RuntimeError("the buyer is ill")
        return assistant("offer 99")

    buyer, seller = played(speak, games=1).trajectories
    assert buyer.ended is EndReason.ERROR
    assert seller.ended is EndReason.TRUNCATED
    assert "The buyer has left" in seller.turns[-1].observation[0].text


def test_two_slots_suffice_for_any_number_of_games():
    group = played(bargaining, games=8, most=2)
    assert len(group.trajectories) == 16
    assert all(t.solved for t in group.trajectories)


def test_script_plays_the_other_seat_by_default():
    async def alone():
        seat = Seat(Dealing, actions="text")
        with pytest.raises(EpisodeError):
            await seat.step(assistant("accept"))
        first = await seat.reset(DEAL, seed=0)
        result = await seat.step(assistant("accept"))
        final = await seat.verdict()
        await seat.close()
        return first.messages[0].text, result.terminated, final

    text, terminated, final = asyncio.run(alone())
    assert "the seller offers 34" in text  # from twice the seller's price, nine tenths of a third of the way down
    assert terminated
    assert final == {"success": False, "score": 0.3, "deal": True}


def test_unknown_and_taken_seats_are_refused():
    with pytest.raises(OptionError, match="at least 2 roles"):
        SelfPlay(group_size=2, roles=["buyer"])
    with pytest.raises(OptionError, match="lawyer is not one of the roles"):
        SelfPlay(group_size=2, roles=["buyer", "seller"], train=["lawyer"])
    group = asyncio.run(
        collector(bargaining).group(GroupPlan(DEAL, seed=1), SelfPlay(group_size=1, roles=["buyer", "lawyer"]))
    )
    buyer, lawyer = group.trajectories
    assert buyer.ended is EndReason.TRUNCATED
    assert lawyer.error.startswith("TaskError: task d: no seat named lawyer; there are: buyer, seller")


def test_scripts_agree_on_a_price_between_their_values():
    source = DealingTasks()
    for index in range(60):
        game = Dealing()
        task = source.task(index)
        game.begin(task, 0)
        while role := game.to_move():
            game.act(role, game.script(role))
        assert game.price is not None
        assert task.private["worth"]["seller"] <= game.price <= task.private["worth"]["buyer"]


@pytest.mark.slow
def test_checkpoint_plays_the_other_seat(tmp_path):
    """The recipe names its folder; its tokenizer must be that of the policy."""
    small = [*SMALL, "supervised.steps=1", "reinforcement.steps=1"]
    first = assemble(load_recipe("bargaining", small))
    first.policy.model.save_pretrained(tmp_path / "old")
    first.policy.tokenizer.save_pretrained(tmp_path / "old")
    seats = f"rollout.strategy={{name: self_play, roles: [buyer, seller], frozen: {{seller: {tmp_path / 'old'}}}}}"
    assert list(assemble(load_recipe("bargaining", [*small, seats])).frozen) == ["seller"]
    summary = train(load_recipe("bargaining", [*small, seats]), tmp_path / "run", progress=Progress(quiet=True))
    assert summary.after.episodes == 4
    rows = [json.loads(line) for line in (tmp_path / "run" / "trajectories" / "step-000001.jsonl").open()]
    assert {row["role"]: row["removal"] for row in rows} == {"buyer": None, "seller": "before_baseline"}
    authors = {row["role"]: {run[0] for turn in row["turns"] for run in turn["action"]["authors"]} for row in rows}
    assert authors == {"buyer": {"policy"}, "seller": {"partner"}}
    with pytest.raises(RecipeError, match=r"frozen\.seller"):
        assemble(load_recipe("bargaining", [*small, seats.replace("/old", "/new")])).check()


def test_frozen_seats_play_the_other_roles():
    strategy = SelfPlay(group_size=2, roles=["buyer", "seller"], frozen={"seller": "folder"})
    table = collector(lambda moment: assistant("offer 1"))
    table.others = {"seller": Says(lambda moment: assistant("leave"))}
    group = asyncio.run(table.group(GroupPlan(DEAL, seed=1), strategy))
    assert {t.role: t.removal for t in group.trajectories} == {"buyer": None, "seller": RemovalScope.BEFORE_BASELINE}
    assert {t.final_text for t in group.trajectories if t.role == "seller"} == {"leave"}
    for trained, frozen, message in (
        (["seller"], {"seller": "x"}, "is played by a frozen model"),
        (None, {"lawyer": "x"}, "must be one of the roles"),
        (None, {"buyer": "x", "seller": "x"}, "nothing is trained"),
    ):
        with pytest.raises(OptionError, match=message):
            SelfPlay(group_size=2, roles=["buyer", "seller"], train=trained, frozen=frozen)


def test_seat_is_part_of_the_episode_request_and_the_task_is_unchanged():
    received = []

    class Recording(Seat):
        def take_seat(self, seat):
            received.append(seat)
            super().take_seat(seat)

        async def reset(self, task, *, seed):
            received.append(task)
            return await super().reset(task, seed=seed)

    table = collector(bargaining)
    table.environment = lambda: Recording(Dealing, actions="text")
    asyncio.run(table.group(GroupPlan(DEAL, seed=1), SelfPlay(group_size=2, roles=["buyer", "seller"])))
    assert [each for each in received if isinstance(each, Task)] == [DEAL] * 4
    seats = [each for each in received if isinstance(each, SeatRequest)]
    games = {(seat.table, seat.seed) for seat in seats}
    assert len(games) == len({seat.table for seat in seats}) == 2
    assert {(*game, role) for game in games for role in ("buyer", "seller")} == {
        (seat.table, seat.seed, seat.role) for seat in seats
    }


def test_strategy_with_seats_requires_an_environment_with_seats():
    keys = {"extends": "bargaining", "environment": {"name": Standing, "max_turns": 6, "actions": None}}
    with pytest.raises(RecipeError, match=r"Standing\S* has no method take_seat\(seat\)"):
        assemble(load_recipe(keys).with_overrides(SMALL)).check()


class Standing:
    """An environment of two roles without a way to choose one."""

    roles = ("buyer", "seller")

    async def reset(self, task, *, seed):
        return Observation((user(task.prompt),))

    async def step(self, action):
        return StepResult(Observation(()), terminated=True)

    async def close(self):
        pass
