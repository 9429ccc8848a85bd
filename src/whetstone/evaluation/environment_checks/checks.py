"""Checks of an environment.

    tasks → expert → random → rewards → trivial policies → determinism → another process → concurrency
    → snapshots → end of an episode → invalid actions → speed

Note:
    A failing check must not hide the others, so each runs separately.

    An environment that seeds a global random generator and uses it is reproducible when it runs by itself, but not if
    other code uses the generator in between. Global generators are therefore also perturbed between turns.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import pickle
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from statistics import fmean, median
from typing import Any

import numpy

from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments import Environment
from whetstone.environments.protocol import HoldsTools, supports_snapshot
from whetstone.errors import EpisodeError, InfrastructureError
from whetstone.evaluation.check_result import Check, CheckStatus
from whetstone.evaluation.environment_checks.play_episode import PlayedEpisode, Policy, play_with_policy, replay_actions
from whetstone.evaluation.environment_checks.random_policy import RandomPolicy
from whetstone.evaluation.environment_checks.trivial_policies import TrivialPolicyCheck
from whetstone.rewards import Reward
from whetstone.tasks import Expert, Source
from whetstone.tools.protocol import GivesVerdict, is_replayable, is_stateless
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Task, Trajectory
from whetstone.user_code import describe_exception

_SEED = 7
_TASKS_OF_IMPOSTORS, _TURNS_OF_IMPOSTORS = 12, 40
_STRANGE = (
    assistant(""),
    assistant("\x00\ud83dnot a command " * 50),
    assistant("", ToolCall("no_such_tool", "{}", "call_0")),
    assistant("", ToolCall("act", "not json", "call_0")),
    assistant("", ToolCall("act", '{"command": 3}', "call_0")),
    Message("assistant", malformed=("it was not closed",)),
)


@dataclass(slots=True)
class Contract:
    """Settings of the checks of one environment, and the numbers that the checks measure."""

    make: Callable[[], Environment]
    """Function that creates an environment."""
    source: Source
    """Source of tasks."""
    make_source: Callable[[], Source]
    """Function that creates the task source again."""
    reward: Reward
    """Reward of the episodes."""
    episodes: int = 20
    """Number of episodes of the expert, and of the random policy."""
    max_turns: int = 60
    """Maximum number of turns of an episode."""
    needs_process: bool = True
    """Whether the same episode is also played in another process."""
    concurrent: int = 64
    """Number of concurrent episodes."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """Measured numbers by name, for reports and benchmarks."""
    scores: list[float] = field(default_factory=list)
    """Reward of each episode of the expert and of the random policy."""


async def check_contract(contract: Contract) -> AsyncIterator[Check]:
    """Run all checks of an environment; yield each result as soon as it is known.

    Args:
        contract: Settings; `numbers` and `scores` are filled while the checks run.
    """
    tried = _Checks(contract)
    checks: list[tuple[str, Callable[[], Awaitable[Check]]]] = [
        ("tasks", tried.check_tasks),
        ("expert", tried.check_expert),
        ("random", tried.check_random_policy),
        ("verdict", tried.check_verdict),
        ("nothing for nothing", tried.trivial_policies),
        ("same again", tried.same_again),
        ("other process", tried.other_process),
        ("side by side", tried.side_by_side),
        ("kept", tried.check_snapshots),
        ("endings", tried.check_endings),
        ("strange actions", tried.check_invalid_actions),
        ("speed", tried.measure_speed),
    ]
    for name, check in checks:
        began = time.perf_counter()
        try:
            result = await check()
        except Exception as error:  # any exception of an environment is a failed check
            message = describe_exception(error).splitlines()[0][:200]
            result = Check(name, CheckStatus.FAIL, message)
        has_episodes = name != "random" or bool(tried.chance)
        if not has_episodes:
            result = replace(result, said=f"{result.said}; the other checks need its episodes and were not run")
        yield replace(result, name=name, seconds=time.perf_counter() - began)
        if not has_episodes:
            return


class _Checks:
    """The checks of one environment; later checks replay the episodes of the random policy."""

    def __init__(self, contract: Contract) -> None:
        self.contract, self.numbers = contract, contract.numbers
        self.chance: list[tuple[Task, PlayedEpisode]] = []
        """Episodes of the random policy."""

    # ------------------------------------------------------------ tasks and rewards

    async def check_tasks(self) -> Check:
        """Check that an index always gives the same task, and that no training task is held out."""
        contract, count = self.contract, max(100, self.contract.episodes)
        first, second = contract.source, contract.make_source()
        trained = {}
        for index in range(count):
            task, other = first.task(index), second.task(index)
            if (task.id, task.prompt, dict(task.private)) != (other.id, other.prompt, dict(other.private)):
                message = f"task {index} is not the same in two sources with the same options"
                return Check("", CheckStatus.FAIL, message, "use derive_random(seed, index), not a global random state")
            trained[task.id] = task
        held_out = first.held_out(50)
        both = sorted(set(trained) & {task.id for task in held_out})
        if both:
            message = f"{len(both)} of {len(held_out)} held-out tasks are trained on, such as {both[0]}"
            return Check("", CheckStatus.FAIL, message, "choose the split by the task content; see tasks/generated.py")
        self.numbers["held_out"] = len(held_out)
        if not held_out:
            return Check("", CheckStatus.FAIL, "no task is held out, so nothing can be evaluated")
        message = (
            f"{len(trained)} different tasks of {count}; {len(held_out)} of 50 held out, none of them for training"
        )
        return Check("", CheckStatus.PASS, message)

    async def check_expert(self) -> Check:
        """Measure the success rate of the expert; an expert that fails is a fault of the expert or the reward."""
        source = self.contract.source
        if not isinstance(source, Expert):
            return Check("", CheckStatus.WARN, "the source has no expert, so there is nothing to warm up on")
        solved, turns = 0, []
        for index in range(self.contract.episodes):
            task = source.task(index)
            try:
                played = await self._play(task, self._expert(source, task))
            except Exception as error:
                if "no answer of its own" in str(error):
                    return Check("", CheckStatus.WARN, str(error).splitlines()[0])
                raise
            if any(call.outcome == "not_called" for call in played.trajectory.calls):
                return Check("", CheckStatus.WARN, "not tried: the expert needs tools that are not called")
            solved += await self._solved(played, task)
            turns.append(len(played.actions))
        fraction = solved / self.contract.episodes
        self.numbers["expert"] = fraction
        message = f"solves {fraction:.0%} of {self.contract.episodes} in {fmean(turns):.1f} turns"
        if fraction < 0.99:
            return Check(
                "",
                CheckStatus.FAIL,
                message,
                "demonstrations of a failing expert are wrong; fix the expert or the reward",
            )
        return Check("", CheckStatus.PASS, message)

    async def check_random_policy(self) -> Check:
        """Measure the success rate of the random policy, and keep its episodes for later checks."""
        solved = 0
        for index in range(self.contract.episodes):
            task = self.contract.source.task(index)
            played = await self._play(task, RandomPolicy(index).choose_action)
            self.chance.append((task, played))
            solved += await self._solved(played, task)
        fraction = solved / self.contract.episodes
        self.numbers["random"] = fraction
        message = f"solves {fraction:.0%}"
        if fraction > 0.9:
            return Check("", CheckStatus.WARN, message, "the random policy solves it: there is nothing to learn")
        return Check("", CheckStatus.PASS, message)

    async def check_verdict(self) -> Check:
        """Check the types of `success` and `score` in the verdict, and measure the range of rewards."""
        for _, played in self.chance:
            final = played.trajectory.final
            if not final:
                continue
            json.dumps(final)  # raises if the trajectory could not be saved
            if "success" in final and not isinstance(final["success"], bool):
                message = f"success is {final['success']!r}, not True or False"
                return Check("", CheckStatus.FAIL, message, "return bool(…)")
            if not 0 <= float(final.get("score", 0)) <= 1:
                return Check("", CheckStatus.FAIL, f"score is {final['score']}, not from 0 to 1")
        scores = self.contract.scores
        self.numbers["rewards"] = [min(scores), max(scores)]
        message = f"rewards from {min(scores):g} to {max(scores):g}"
        if min(scores) == max(scores):
            return Check("", CheckStatus.WARN, f"{message}: equal for the expert and the random policy")
        return Check("", CheckStatus.PASS, message)

    async def trivial_policies(self) -> Check:
        """Check that trivial policies do not win, and that no action ends an episode with an error."""
        contract = self.contract
        tasks, turns = min(_TASKS_OF_IMPOSTORS, contract.episodes), min(_TURNS_OF_IMPOSTORS, contract.max_turns)
        tried = TrivialPolicyCheck(contract.make, contract.source, contract.reward, tasks=tasks, max_turns=turns)
        check = await tried.check()
        self.numbers["impostors"] = {name: asdict(each) for name, each in tried.attempts.items()}
        return check

    # ------------------------------------------------------------ determinism

    async def same_again(self) -> Check:
        """Check that task, seed and actions determine the episode, independent of global random generators."""
        states, mover = rng_states(), RngPerturber()
        mend = "derive randomness from the seed of `reset`: random.Random(seed)"
        try:
            for task, played in self.chance[:8]:
                mover.set_next_state()
                other = await self._replay(task, played, between=mover.check_between_turns)
                if other.transcript != played.transcript:
                    message = f"task {task.id}: {_difference(played.trajectory, other.trajectory)}"
                    generators = await self._drawn_from(task, played)
                    message += f"; it depends on {generators}, a global generator" if generators else ""
                    return Check("", CheckStatus.FAIL, message, mend)
        finally:
            restore_rng(states)
        if mover.touched:
            message = f"the same, but it changes {' and '.join(sorted(mover.touched))}, a global generator"
            return Check("", CheckStatus.WARN, message, mend)
        return Check("", CheckStatus.PASS, f"{len(self.chance[:8])} episodes were equal when replayed")

    async def _drawn_from(self, task: Task, played: PlayedEpisode) -> str:
        """Return the names of the global generators whose seed changes the episode; empty if none does."""

        async def led(seed: int, names: Sequence[str]) -> str:
            mover = RngPerturber(seed, names)
            mover.set_next_state()
            return (await self._replay(task, played, between=mover.check_between_turns)).transcript

        for names in COMBINATIONS:
            if await led(1, names) == await led(1, names) != await led(2, names):
                return " and ".join(names)
        return ""

    async def _replay(self, task: Task, played: PlayedEpisode, **options: Any) -> PlayedEpisode:
        """Play the actions of an episode again; the new episode ends after them."""
        most = len(played.actions)
        return await play_with_policy(
            self.contract.make, task, replay_actions(played.actions), seed=_SEED, max_turns=most, **options
        )

    async def other_process(self) -> Check:
        """Check that the same task, seed and actions give the same episode in a new process."""
        if not self.contract.needs_process:
            return Check("", CheckStatus.WARN, "skipped")
        task, played = self.chance[0]
        try:
            work = pickle.dumps((self.contract.make, task, played.actions))
        except Exception as error:
            message = f"not tested: it cannot be sent to another process ({type(error).__name__})"
            return Check("", CheckStatus.WARN, message)
        digest = await asyncio.to_thread(_digest_in_new_process, work)
        if digest != played.digest:
            message = "the same episode differs in a new process"
            return Check("", CheckStatus.FAIL, message, "no `hash()` of text, no order of sets, no clock")
        return Check("", CheckStatus.PASS, "the same episode")

    async def side_by_side(self) -> Check:
        """Check that many concurrent episodes, stepped in turn, equal the sequential ones."""
        count = self.contract.concurrent
        chosen = [self.chance[k % len(self.chance)] for k in range(count)]

        async def yielding(environment: Environment, turns: int) -> None:
            await asyncio.sleep(0)

        began = time.perf_counter()
        others = await asyncio.gather(*(self._replay(task, played, between=yielding) for task, played in chosen))
        seconds = time.perf_counter() - began
        steps = sum(len(played.actions) for played in others)
        self.numbers["steps_per_second_64"] = steps / seconds
        self.numbers["episodes_per_second_64"] = count / seconds
        wrong = sum(o.transcript != p.transcript for o, (_, p) in zip(others, chosen, strict=True))
        if wrong:
            message = f"{wrong} of {count} concurrent episodes differ from the sequential ones"
            return Check("", CheckStatus.FAIL, message, "keep state in the object; else declare isolation: process")
        return Check("", CheckStatus.PASS, f"{count} concurrent episodes equal the sequential ones")

    async def check_snapshots(self) -> Check:
        """Check that a snapshot or the same actions restore a state, or that the environment declares neither."""
        task, played = max(self.chance, key=lambda each: len(each[1].actions))
        environment = self.contract.make()
        if not supports_snapshot(environment):
            await environment.close()
            if is_stateless(environment):
                return Check("", CheckStatus.PASS, "answers depend only on the action (stateless)")
            led_back = is_replayable(environment)
            message = "no snapshots; restored by the same actions" if led_back else "neither snapshots nor replay"
            return Check("", CheckStatus.PASS if led_back else CheckStatus.WARN, message)
        try:
            middle = len(played.actions) // 2
            await environment.reset(task, seed=_SEED)
            for action in played.actions[:middle]:
                await environment.step(action)
            snapshot = await call_user_function(environment.snapshot)  # type: ignore[attr-defined]
            ways: list[Any] = []
            for _ in range(2):
                results: list[Any] = []
                for action in played.actions[middle:]:
                    result = await environment.step(action)
                    results.append((result.observation.messages, result.reward, result.ended))
                final = (
                    await call_user_function(environment.verdict)
                    if implements_protocol(environment, GivesVerdict)
                    else {}
                )
                ways.append((results, final))
                await call_user_function(environment.restore, snapshot)  # type: ignore[attr-defined]
        finally:
            await environment.close()
        if ways[0] != ways[1]:
            message = f"after a snapshot at turn {middle} the same actions had other results"
            return Check("", CheckStatus.FAIL, message, "include all state that determines later observations")
        return Check("", CheckStatus.PASS, f"a snapshot at turn {middle} was restored")

    # ------------------------------------------------------------ behavior

    async def check_endings(self) -> Check:
        """Check steps after the end, closing at any time and twice, and reset after the end."""
        notes = []
        task, played = min(self.chance, key=lambda each: len(each[1].actions))
        environment = self.contract.make()
        await environment.close()  # before the first reset
        environment = self.contract.make()
        try:
            await environment.reset(task, seed=_SEED)
            for action in played.actions:
                result = await environment.step(action)
            if result.ended is not None and not implements_protocol(environment, HoldsTools):
                try:
                    await environment.step(played.actions[-1])
                    notes.append("a step after the end is executed")
                except EpisodeError:
                    pass
                except InfrastructureError:
                    notes.append("a step after the end raises an infrastructure error")
            await environment.reset(task, seed=_SEED)
        finally:
            await environment.close()
            await environment.close()
        if notes:
            return Check("", CheckStatus.WARN, "; ".join(notes), "raise EpisodeError instead")
        return Check("", CheckStatus.PASS, "closed before the end, in the middle and twice; reset after the end")

    async def check_invalid_actions(self) -> Check:
        """Check that invalid actions get an observation instead of an exception."""
        task = self.chance[0][0]
        for action in _STRANGE:
            environment = self.contract.make()
            try:
                await environment.reset(task, seed=_SEED)
                await environment.step(action)
            except Exception as error:
                excerpt = (action.text or str(action.tool_calls or action.malformed))[:40]
                message = f"{excerpt!r} raised {describe_exception(error)}"[:300]
                return Check("", CheckStatus.FAIL, message, "return an observation that explains the valid actions")
            finally:
                await environment.close()
        return Check("", CheckStatus.PASS, f"{len(_STRANGE)} got an observation")

    async def measure_speed(self) -> Check:
        """Measure steps and episodes per second, sequential and concurrent."""
        seconds = [played.seconds for _, played in self.chance]
        steps = [len(played.actions) / max(1e-9, played.seconds) for _, played in self.chance]
        self.numbers |= {"steps_per_second": median(steps), "episodes_per_second": 1 / max(1e-9, median(seconds))}
        numbers = self.numbers
        message = (
            f"{numbers['steps_per_second']:,.0f} steps and {numbers['episodes_per_second']:,.0f} episodes per second; "
            f"{self.contract.concurrent} concurrent: {numbers.get('steps_per_second_64', 0):,.0f} and "
            f"{numbers.get('episodes_per_second_64', 0):,.0f}"
        )
        return Check("", CheckStatus.PASS, message)

    # ------------------------------------------------------------ helpers

    async def _play(self, task: Task, policy: Policy, **options: Any) -> PlayedEpisode:
        return await play_with_policy(
            self.contract.make, task, policy, seed=_SEED, max_turns=self.contract.max_turns, **options
        )

    @staticmethod
    def _expert(source: Expert, task: Task) -> Policy:
        return lambda conversation, tools, admissible: source.demonstrate(task, conversation, tools)

    async def _solved(self, played: PlayedEpisode, task: Task) -> bool:
        score = await self.contract.reward(played.trajectory, task)
        self.contract.scores.append(score.value)
        return bool(score.success)


RANDOM, NUMPY = "Python's global `random`", "`numpy.random`"
COMBINATIONS = ((RANDOM,), (NUMPY,), (RANDOM, NUMPY))
"""Each generator by itself, and both."""


def rng_states() -> Mapping[str, Any]:
    """Return the states of the global random generators of Python and NumPy, by name."""
    return {RANDOM: random.getstate(), NUMPY: numpy.random.get_state()}


def restore_rng(saved: Mapping[str, Any]) -> None:
    """Restore the states of the global random generators that `rng_states` returned."""
    random.setstate(saved[RANDOM])
    numpy.random.set_state(saved[NUMPY])


class RngPerturber:
    """Reseeds global random generators between turns, and detects whether other code has used them.

    Args:
        seed: Seed of the sequence of states.
        names: Names of the generators to reseed.
    """

    def __init__(self, seed: int = 0, names: Sequence[str] = COMBINATIONS[-1]) -> None:
        self.place, self.names = 1_000_000 * seed, names
        self.touched: set[str] = set()
        """Names of the generators that other code has changed."""
        self._left: Mapping[str, Any] = {}

    def set_next_state(self) -> None:
        """Reseed the generators with the next seed of the sequence."""
        self.place += 1
        if RANDOM in self.names:
            random.seed(self.place)
        if NUMPY in self.names:
            numpy.random.seed(self.place)
        self._left = rng_states()

    async def check_between_turns(self, environment: Environment, turns: int) -> None:
        """Add generators that were used since the last call to `touched`, and reseed all; called between turns."""
        now = rng_states()
        self.touched |= {name for name in now if pickle.dumps(now[name]) != pickle.dumps(self._left[name])}
        self.set_next_state()


def _difference(one: Trajectory, other: Trajectory) -> str:
    """Describe the first difference between two episodes that should be equal."""
    if one.opening != other.opening:
        return "its initial messages differ the second time"
    for number, (a, b) in enumerate(zip(one.turns, other.turns, strict=False)):
        if a.observation != b.observation:
            return f"the observation of turn {number + 1} differs the second time"
        if a.reward != b.reward:
            return f"the reward of turn {number + 1} differs the second time"
    return f"it ends with {one.ended} and {other.ended}, verdict {dict(one.final)} and {dict(other.final)}"


def _digest_in_new_process(work: bytes) -> str:
    """Play an episode in a new process and return its digest.

    The result comes through a pipe: a `ProcessPoolExecutor` needs semaphores, and these need a writable `/dev/shm`.

    Raises:
        RuntimeError: The episode failed there, or the process ended early.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_digest, args=(sender, work))
    process.start()
    sender.close()
    try:
        digest, failure = receiver.recv()
    except EOFError:
        digest, failure = "", "the process ended early"
    process.join()
    if failure:
        raise RuntimeError(failure)
    return str(digest)


def _send_digest(sender: Connection, work: bytes) -> None:
    try:
        make, task, actions = pickle.loads(work)
        played = asyncio.run(play_with_policy(make, task, replay_actions(actions), seed=_SEED, max_turns=len(actions)))
        sender.send((played.digest, ""))
    except Exception as error:
        sender.send(("", describe_exception(error)))
