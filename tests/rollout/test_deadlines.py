"""Deadlines of each stage of an episode, and the component that is responsible; plain functions run in parallel."""

import asyncio
import contextlib
import threading
import time
from contextvars import ContextVar
from dataclasses import replace
from typing import ClassVar

import pytest

from support.episodes import CHAT, TASK
from whetstone.chat import ToolCall, assistant, user
from whetstone.environments import Noisy, Observation, Reply, StepResult, ToolEnvironment
from whetstone.errors import NoScoredEpisodesError
from whetstone.inference import Sampling
from whetstone.rewards.build_reward import make_reward
from whetstone.rewards.scoring import score_trajectory
from whetstone.rollout import (
    Action,
    Collector,
    EpisodeLimits,
    GroupPlan,
    Independent,
    PolicyActor,
    make_plans,
    run_episode,
)
from whetstone.tools import Toolset
from whetstone.training.supervised import describe_groups
from whetstone.trajectory import Author, EndReason, Score, Task, Tokens, Trajectory

QUICK = EpisodeLimits(max_turns=4, context_length=2000, timeout_seconds=0.3)
PATIENT = replace(QUICK, timeout_seconds=30)
FOREVER = 10**6


class Actor:
    """Calls the tool `look` once, then answers; hangs in one of its turns."""

    owner = "the engine"

    def __init__(self, *, hangs_at=None, answers_probe=True):
        self.hangs_at, self.answers_probe, self.calls = hangs_at, answers_probe, 0

    async def act(self, moment):
        self.calls += 1
        if moment.turn == self.hangs_at:
            await asyncio.sleep(FOREVER)
        message = assistant("", ToolCall("look", "{}")) if moment.turn == 0 else assistant("done")
        return Action(Tokens.from_ids(CHAT.write(message, moment.tools), Author.EXPERT))

    async def is_answering(self):
        return self.answers_probe

    def leave(self, episode):
        pass


async def hang_async():
    await asyncio.sleep(FOREVER)


async def hang_deaf():
    """Ignore every cancellation for a while."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.2)


RELEASE = threading.Event()


def hang_plain():
    RELEASE.wait(60)


@pytest.fixture(autouse=True)
def released():
    RELEASE.clear()
    yield
    RELEASE.set()


def tool_class(stage, act):
    """A class of tools with an action at one stage: `__init__`, `open`, `look`, `verdict` or `close`."""

    def at(name, value=None):
        if name != stage or not asyncio.iscoroutinefunction(act):

            def plain(self, *arguments):
                if name == stage:
                    act()
                return value

            return plain

        async def asynchronous(self, *arguments):
            await act()
            return value

        return asynchronous

    def look(self) -> str:
        """Look."""
        if stage == "look":
            act()
        return "seen"

    async def look_async(self) -> str:
        """Look."""
        await act()
        return "seen"

    look_async.__name__ = "look"
    names = {"open": at("open"), "verdict": at("verdict", {"success": True}), "close": at("close")}
    names |= {"look": look_async if stage == "look" and asyncio.iscoroutinefunction(act) else look}
    names |= {"__init__": at("__init__")} if stage == "__init__" else {}
    return type("Shop", (), names)


def world_class(stage, act, *, is_async):
    """An environment whose methods are plain or async, with an action at one stage."""
    ended = StepResult(Observation(()), terminated=True)
    values = {"reset": Observation((user("go"),)), "step": ended, "verdict": {"success": True}, "close": None}

    def at(name):
        async def asynchronous(self, *arguments, **options):
            if name == stage:
                await act()
            return values[name]

        def plain(self, *arguments, **options):
            if name == stage:
                act()
            return values[name]

        return asynchronous if is_async else plain

    return type("World", (), {name: at(name) for name in values})


def play(environment, actor=None, limits=QUICK):
    episode = run_episode(
        TASK, environment=environment, actor=actor or Actor(), chat=CHAT, limits=limits, id="e", seed=1
    )
    return asyncio.run(episode)


# ------------------------------------------------------------ to whom a passed deadline is attributed


@pytest.mark.parametrize("hang", [hang_async, hang_plain])
@pytest.mark.parametrize("around", [lambda inner: inner, Noisy])
def test_a_tool_that_hangs_at_open_is_an_infrastructure_failure_that_names_it(hang, around):
    actor = Actor()
    trajectory = play(around(ToolEnvironment(tools=[tool_class("open", hang)])), actor)
    assert (trajectory.ended, len(trajectory.turns), actor.calls) == (EndReason.INFRASTRUCTURE, 0, 0)
    assert trajectory.error == "tool Shop (open) did not answer within 0.3 s"


@pytest.mark.parametrize(("is_async", "hang"), [(True, hang_async), (False, hang_plain)])
def test_an_environment_that_hangs_at_reset_is_an_infrastructure_failure(is_async, hang):
    trajectory = play(world_class("reset", hang, is_async=is_async)())
    assert trajectory.ended is EndReason.INFRASTRUCTURE
    assert trajectory.error == "its environment (reset) did not answer within 0.3 s"


class SilentUser:
    def open(self, episode):
        hang_plain()

    def answer(self, text):
        return Reply("no")

    def close(self):
        pass


def test_a_user_that_hangs_at_open_is_an_infrastructure_failure_with_its_name():
    trajectory = play(ToolEnvironment(user=SilentUser))
    assert trajectory.ended is EndReason.INFRASTRUCTURE
    assert trajectory.error == "the user (open) did not answer within 0.3 s"


@pytest.mark.parametrize("limits", [QUICK, replace(PATIENT, turn_timeout_seconds=0.3)])
@pytest.mark.parametrize(
    ("turn", "answers_probe", "ended"),
    [
        (0, True, EndReason.INFRASTRUCTURE),  # the policy never owners anything
        (0, False, EndReason.INFRASTRUCTURE),
        (1, False, EndReason.INFRASTRUCTURE),  # no request is answered
        (1, True, EndReason.TIMEOUT),  # the engine responds to others: the policy generates too long
    ],
)
def test_an_engine_that_never_answers_is_an_infrastructure_failure(turn, answers_probe, ended, limits):
    actor = Actor(hangs_at=turn, answers_probe=answers_probe)
    trajectory = play(ToolEnvironment(tools=[tool_class("", hang_plain)]), actor, limits)
    assert (trajectory.ended, len(trajectory.turns)) == (ended, turn)
    if ended is EndReason.INFRASTRUCTURE:
        assert trajectory.error == f"the engine (turn {turn + 1}) did not answer within 0.3 s"


@pytest.mark.parametrize("hang", [hang_async, hang_plain])
def test_a_verdict_that_does_not_come_is_an_infrastructure_failure(hang):
    trajectory = play(ToolEnvironment(tools=[tool_class("verdict", hang)]))
    assert (trajectory.ended, len(trajectory.turns)) == (EndReason.INFRASTRUCTURE, 2)
    assert trajectory.error == "tool Shop (verdict) did not answer within 0.3 s"


@pytest.mark.parametrize(("is_async", "hang"), [(True, hang_async), (False, hang_plain)])
def test_an_environment_that_hangs_at_a_step_is_the_outcome_of_the_action(is_async, hang):
    trajectory = play(world_class("step", hang, is_async=is_async)(), limits=replace(QUICK, timeout_seconds=1.5))
    assert (trajectory.ended, len(trajectory.turns)) == (EndReason.TIMEOUT, 1)


def test_late_owner_is_that_of_the_last_wait():
    """Let one call be cancelled and another stage hang; only the latter is named."""
    slow = ToolEnvironment(tools=[tool_class("look", hang_async)], tool_timeout_seconds=0.05)
    trajectory = play(slow, Actor(hangs_at=1, answers_probe=False), replace(QUICK, timeout_seconds=0.6))
    assert [call.outcome for call in trajectory.calls] == ["timeout"]
    assert trajectory.error == "the engine (turn 2) did not answer within 0.6 s"


# ------------------------------------------------------------ close


@pytest.mark.parametrize("hang", [hang_async, hang_plain])
def test_a_tool_that_hangs_at_close_ends_the_wait_and_is_named(hang):
    trajectory = play(ToolEnvironment(tools=[tool_class("close", hang)]), limits=replace(QUICK, timeout_seconds=1))
    assert (trajectory.ended, trajectory.final) == (EndReason.TERMINATED, {"success": True})
    assert trajectory.error == "tool Shop (close) did not finish within 1 s"
    assert "not_closed" in trajectory.marks


def test_a_tool_that_hangs_at_close_does_not_keep_the_others_open():
    closed = []
    first = type("First", (), {"close": lambda self: closed.append("first"), "see": lambda self: None})
    hanging = tool_class("close", hang_async)
    trajectory = play(ToolEnvironment(tools=[first, hanging]), limits=replace(QUICK, timeout_seconds=1))
    assert closed == ["first"]
    assert "not_closed" in trajectory.marks


def test_a_tool_that_raises_at_close_is_reported_and_the_episode_counts():
    def fail():
        raise OSError("no disk")

    trajectory = play(ToolEnvironment(tools=[tool_class("close", fail)]))
    assert trajectory.ended is EndReason.TERMINATED
    assert "OSError: no disk" in trajectory.error
    assert "not_closed" in trajectory.marks


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "ended"), [("reset", EndReason.INFRASTRUCTURE), ("close", EndReason.TERMINATED)])
def test_coroutine_that_ignores_its_cancellation_is_abandoned(stage, ended, monkeypatch):
    monkeypatch.setattr("whetstone.rollout.runner._SPARE_SECONDS", 0.5)
    trajectory = play(world_class(stage, hang_deaf, is_async=True)())
    if stage == "reset":
        assert trajectory.ended is ended
    assert trajectory.error


class Grouped:
    """Holds a task group from `open` to `close`, as clients of many servers do."""

    async def open(self, episode):
        self.stack = contextlib.AsyncExitStack()
        await self.stack.enter_async_context(asyncio.TaskGroup())
        await self.stack.enter_async_context(asyncio.timeout(60))

    async def look(self) -> str:
        """Look."""
        return "seen"

    async def close(self):
        await self.stack.aclose()


def test_open_and_close_run_in_one_task():
    trajectory = play(ToolEnvironment(tools=[Grouped]), limits=PATIENT)
    assert (trajectory.ended, trajectory.error) == (EndReason.TERMINATED, None)


# ------------------------------------------------------------ plain functions run in threads

SIZE = 8


class Barrier:
    """Passed when all episodes of a group are there at the same time."""

    def __init__(self):
        self.barrier = threading.Barrier(SIZE, timeout=20)

    def __call__(self):
        self.barrier.wait()


def group_of(assembly, environment, **changes):
    async def main():
        limits = replace(PATIENT, context_length=2000)
        collector = Collector(
            environment=environment,
            actor=changes.pop("actor", None) or Actor(),
            chat=CHAT,
            reward=changes.pop("reward", None) or worth_one,
            limits=changes.pop("limits", limits),
            max_in_flight=SIZE,
            infrastructure_retries=0,
            **changes,
        )
        plans = make_plans([Task("t", "go")], seed=0)
        return [group async for group in collector.groups(plans, Independent(group_size=SIZE))]

    (group,) = asyncio.run(main())
    return group


async def worth_one(trajectory, task):
    return Score(1.0, success=True)


def assert_all_scored(group):
    assert [(t.ended, t.error) for t in group.trajectories] == [(EndReason.TERMINATED, None)] * SIZE
    assert group.rewards == (1.0,) * SIZE


@pytest.mark.parametrize("stage", ["__init__", "open", "look", "verdict", "close"])
def test_plain_functions_of_tools_run_in_parallel(stage):
    act = Barrier()
    kind = tool_class(stage, act)
    if stage == "__init__":
        kind.__init__ = lambda self: act() if threading.current_thread() is not MAIN else None
    assert_all_scored(group_of(None, lambda: ToolEnvironment(tools=[kind], tool_timeout_seconds=30)))


MAIN = threading.main_thread()


@pytest.mark.parametrize("stage", ["reset", "step", "verdict", "close"])
@pytest.mark.parametrize("around", [lambda inner: inner, Noisy])
def test_plain_methods_of_environments_run_in_parallel(stage, around):
    kind = world_class(stage, Barrier(), is_async=False)
    assert_all_scored(group_of(None, lambda: around(kind())))


@pytest.mark.parametrize("stage", ["open", "answer", "close"])
def test_plain_users_run_in_parallel(stage):
    act = Barrier()

    class User:
        def open(self, episode):
            return self.at("open", Reply("go"))

        def answer(self, text):
            return self.at("answer", Reply("bye", ended=True))

        def close(self):
            self.at("close", None)

        def at(self, name, value):
            if name == stage:
                act()
            return value

    class Answers(Actor):
        async def act(self, moment):
            return Action(Tokens.from_ids(CHAT.write(assistant("done"), moment.tools), Author.EXPERT))

    assert_all_scored(group_of(None, lambda: ToolEnvironment(user=User), actor=Answers()))


PLAIN = {}


def plain_reward(trajectory, task):
    PLAIN["act"]()
    return Score(1.0, success=True)


class PlainReward:
    def __call__(self, trajectory, task):
        PLAIN["act"]()
        return Score(1.0, success=True)


@pytest.mark.parametrize("name", ["plain_reward", "PlainReward"])
@pytest.mark.parametrize("composed", [False, True])
def test_plain_rewards_run_in_parallel(name, composed):
    PLAIN["act"] = Barrier()
    from whetstone.rewards import REWARDS

    named = f"{__name__}:{name}"
    reward = make_reward({"name": "composed", "terms": {"right": named}} if composed else named, REWARDS)
    kind = world_class("", None, is_async=True)
    assert_all_scored(group_of(None, kind, reward=reward))


def test_game_without_a_declared_isolation_runs_in_a_thread():
    from whetstone.environments import GameEnvironment, GameObservation

    act = Barrier()

    class Door:
        def begin(self, task, seed):
            act()
            return GameObservation("a door")

        def act(self, command):
            return GameObservation("open", terminated=True)

        def verdict(self):
            return {"success": True}

        def close(self):
            pass

    class Opens(Actor):
        async def act(self, moment):
            return Action(Tokens.from_ids(CHAT.write(assistant("open"), moment.tools), Author.EXPERT))

    assert_all_scored(group_of(None, lambda: GameEnvironment(Door, actions="text"), actor=Opens()))


WHO = ContextVar("WHO", default="nobody")


class Signed:
    """Sets a context variable in `open` and reads it at every later stage."""

    seen: ClassVar = []

    def open(self, episode):
        WHO.set(f"episode {episode.seed}")

    def look(self) -> str:
        """Look."""
        self.seen.append(WHO.get())
        return "seen"

    async def look_too(self) -> str:
        """Look."""
        self.seen.append(WHO.get())
        return "seen"

    def verdict(self):
        self.seen.append(WHO.get())
        return {}

    def close(self):
        self.seen.append(WHO.get())


def test_context_variable_set_in_a_plain_open_is_visible_at_every_later_stage():
    async def main(seed):
        toolset = Toolset([Signed])
        await toolset.open(Task("t", ""), seed=seed)
        await toolset.call(ToolCall("look", "{}"))
        await toolset.call(ToolCall("look_too", "{}"))
        await toolset.verdict()
        await toolset.close()

    async def both():
        await asyncio.gather(main(1), main(2))

    Signed.seen.clear()
    asyncio.run(both())
    assert sorted(Signed.seen) == ["episode 1"] * 4 + ["episode 2"] * 4


# ------------------------------------------------------------ the watchdog, the counts, the end of a run


def waits_while(environment, actor=None, *, until, **changes):
    """Return the owners that the watchdog lists for an episode that hangs, once `until` is one of them."""

    async def main():
        collector = Collector(
            environment=environment, actor=actor or Actor(), chat=CHAT, reward=changes.pop("reward", worth_one),
            limits=PATIENT, max_in_flight=1, **changes,
        )  # fmt: skip
        playing = asyncio.create_task(collector.sample(GroupPlan(TASK, 0)))
        owners = []
        for _ in range(2000):
            owners = [what for _, what, _ in collector.waits()]
            if until in owners or playing.done():
                break
            await asyncio.sleep(0.005)
        playing.cancel()
        RELEASE.set()
        await asyncio.gather(playing, return_exceptions=True)
        return owners

    return asyncio.run(main())


async def hanging_reward(trajectory, task):
    await asyncio.sleep(FOREVER)


@pytest.mark.parametrize("hang", [hang_async, hang_plain])
@pytest.mark.parametrize(
    ("stage", "owner"),
    [
        ("open", "tool Shop (open)"),
        ("look", "look"),
        ("verdict", "tool Shop (verdict)"),
        ("close", "tool Shop (close)"),
    ],
)
def test_the_watchdog_names_the_tool_at_every_stage(stage, owner, hang):
    make = lambda: ToolEnvironment(tools=[tool_class(stage, hang)], tool_timeout_seconds=60)  # noqa: E731
    assert waits_while(make, until=owner) == [owner]


@pytest.mark.parametrize("stage", ["reset", "step", "verdict", "close"])
def test_the_watchdog_names_the_environment_at_every_stage(stage):
    owner = "its environment" if stage == "step" else f"its environment ({stage})"
    owners = waits_while(world_class(stage, hang_plain, is_async=False), until="look" if stage == "step" else owner)
    assert owners == ["look" if stage == "step" else owner]


def test_the_watchdog_names_engine_and_reward():
    nothing = world_class("", None, is_async=True)
    assert waits_while(nothing, Actor(hangs_at=0), until="the engine (turn 1)") == ["the engine (turn 1)"]
    assert waits_while(nothing, until="its reward", reward=hanging_reward) == ["its reward"]


def test_episodes_without_a_turn_are_retried_and_counted_and_have_no_score():
    opened = []

    class Opens:
        async def open(self, episode):
            opened.append(1)
            await asyncio.sleep(FOREVER)

        def look(self) -> str:
            """Look."""
            return ""

    async def main():
        collector = Collector(
            environment=lambda: ToolEnvironment(tools=[Opens]), actor=Actor(), chat=CHAT, reward=worth_one,
            limits=QUICK, max_in_flight=2, infrastructure_retries=2, back_off_seconds=0.0,
        )  # fmt: skip
        groups = [g async for g in collector.groups(make_plans([TASK], seed=0), Independent(group_size=2))]
        with pytest.raises(NoScoredEpisodesError, match=r"tool Shop|tool Opens \(open\) did not answer within"):
            collector.conclude()
        return groups, collector.status().retried

    groups, retried = asyncio.run(main())
    assert (len(opened), retried) == (6, 4)
    metrics = describe_groups(groups)
    assert (metrics["episode/invalid"], metrics["episode/invalid_fraction"]) == (2.0, 1.0)
    assert "episode/success" not in metrics
    assert "reward/mean" not in metrics


class SilentEngine:
    """Accept every request and never respond."""

    version = 0

    async def generate(self, request):
        await asyncio.sleep(FOREVER)

    def forget(self, episode):
        pass


def test_engine_that_accepts_requests_and_never_responds_is_named():
    actor = PolicyActor(SilentEngine(), Sampling(4), frozenset({1}))
    trajectory = play(world_class("", None, is_async=True)(), actor)
    assert (trajectory.ended, trajectory.turns) == (EndReason.INFRASTRUCTURE, ())
    assert trajectory.error == "the engine (turn 1) did not answer within 0.3 s"


def test_reward_in_a_task_group_has_the_context_of_its_caller():
    """Store a judge's response in a plain reward with its trajectory."""
    from whetstone.rewards.judges.judge_log import record_judgment
    from whetstone.rewards.judges.protocol import Question

    def judged(trajectory, task):
        record_judgment(Question(f"is {trajectory.id} right?", "", {}), {"verdict": "yes"})
        return Score(1.0)

    trajectory = Trajectory("e", "t", (), (), EndReason.TERMINATED)
    (answer,) = asyncio.run(score_trajectory(judged, trajectory, TASK)).score.judgements
    assert answer.question == "is e right?"
