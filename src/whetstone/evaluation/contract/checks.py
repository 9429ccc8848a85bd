"""The promises of an environment, each tried.

    tasks → expert → random → rewards → nothing for nothing → the same again → in another process → beside others
    → kept and led back → endings → strange actions → speed

Easy to get wrong: a check that fails must not hide the others, so each is run for itself.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import pickle
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from statistics import fmean, median
from typing import Any

from whetstone.chat import Message, ToolCall, assistant
from whetstone.contracts import fulfils
from whetstone.environments import Environment
from whetstone.environments.protocol import HoldsTools, can_be_kept
from whetstone.errors import EpisodeError, InfrastructureError
from whetstone.evaluation.checks import Check, CheckStatus
from whetstone.evaluation.contract import shared_chance
from whetstone.evaluation.contract.nothing import Nothing
from whetstone.evaluation.contract.playing import Played, Policy, again, play
from whetstone.evaluation.contract.random_policy import RandomPolicy
from whetstone.rewards import Reward
from whetstone.tasks import Expert, Source
from whetstone.tools.protocol import GivesVerdict, replayable, stateless
from whetstone.tools.threads import call_user_function
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
    """What is checked, and what was found."""

    make: Callable[[], Environment]
    source: Source
    again: Callable[[], Source]
    """Makes the source anew."""
    reward: Reward
    episodes: int = 20
    max_turns: int = 60
    needs_process: bool = True
    """Whether the same episode is tried in another process, too."""
    concurrent: int = 64
    found: dict[str, Any] = field(default_factory=dict)
    """Numbers by name, for people and benchmarks."""
    scores: list[float] = field(default_factory=list)
    """Of every episode of the expert and of chance."""


async def check_contract(contract: Contract) -> AsyncIterator[Check]:
    """Try everything; one check after the other."""
    tried = _Tried(contract)
    checks: list[tuple[str, Callable[[], Awaitable[Check]]]] = [
        ("tasks", tried.tasks),
        ("expert", tried.expert),
        ("random", tried.random),
        ("verdict", tried.verdict),
        ("nothing for nothing", tried.nothing),
        ("same again", tried.same_again),
        ("other process", tried.other_process),
        ("side by side", tried.side_by_side),
        ("kept", tried.kept),
        ("endings", tried.endings),
        ("strange actions", tried.strange),
        ("speed", tried.speed),
    ]
    for name, check in checks:
        began = time.perf_counter()
        try:
            result = await check()
        except Exception as error:  # what an environment raises is what is looked for
            said = describe_exception(error).splitlines()[0][:200]
            result = Check(name, CheckStatus.FAIL, said)
        yield replace(result, name=name, seconds=time.perf_counter() - began)


class _Tried:
    """The checks, and the episodes they share."""

    def __init__(self, contract: Contract) -> None:
        self.contract, self.found = contract, contract.found
        self.chance: list[tuple[Task, Played]] = []
        """Episodes of the random policy."""

    # ------------------------------------------------------------ what it is worth

    async def tasks(self) -> Check:
        """The same task of the same index; none both trained on and held out."""
        contract, count = self.contract, max(100, self.contract.episodes)
        first, second = contract.source, contract.again()
        trained = {}
        for index in range(count):
            task, other = first.task(index), second.task(index)
            if (task.id, task.prompt, dict(task.private)) != (other.id, other.prompt, dict(other.private)):
                said = f"task {index} is not the same in two sources with the same options"
                return Check("", CheckStatus.FAIL, said, "use derive_random(seed, index), not a global random state")
            trained[task.id] = task
        held_out = first.held_out(50)
        both = sorted(set(trained) & {task.id for task in held_out})
        if both:
            said = f"{len(both)} of {len(held_out)} held-out tasks are trained on, such as {both[0]}"
            return Check("", CheckStatus.FAIL, said, "choose the split by the task content; see tasks/generated.py")
        self.found["held_out"] = len(held_out)
        if not held_out:
            return Check("", CheckStatus.FAIL, "no task is held out, so nothing can be evaluated")
        said = f"{len(trained)} different ones of {count}, {len(held_out)} of 50 held out, apart"
        return Check("", CheckStatus.PASS, said)

    async def expert(self) -> Check:
        """The expert's success."""
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
        share = solved / self.contract.episodes
        self.found["expert"] = share
        said = f"solves {share:.0%} of {self.contract.episodes} in {fmean(turns):.1f} turns"
        if share < 0.99:
            return Check("", CheckStatus.FAIL, said, "an expert that fails teaches failing; mend it or the reward")
        return Check("", CheckStatus.PASS, said)

    async def random(self) -> Check:
        """A random policy's success."""
        solved = 0
        for index in range(self.contract.episodes):
            task = self.contract.source.task(index)
            played = await self._play(task, RandomPolicy(index).action)
            self.chance.append((task, played))
            solved += await self._solved(played, task)
        share = solved / self.contract.episodes
        self.found["random"] = share
        said = f"solves {share:.0%}"
        if share > 0.9:
            return Check("", CheckStatus.WARN, said, "chance solves it: there is nothing to learn")
        return Check("", CheckStatus.PASS, said)

    def _looked_at(self) -> list[tuple[Task, Played]]:
        """The episodes of chance.

        Raises:
            RuntimeError: There is none.
        """
        if not self.chance:
            raise RuntimeError("no episode came about that could be looked at")
        return self.chance

    async def verdict(self) -> Check:
        """What the environment says at the end, and the range of rewards."""
        for _, played in self._looked_at():
            final = played.trajectory.final
            if not final:
                continue
            json.dumps(final)  # raises where a trajectory could not be written
            if "success" in final and not isinstance(final["success"], bool):
                said = f"success is {final['success']!r}, not True or False"
                return Check("", CheckStatus.FAIL, said, "return bool(…)")
            if not 0 <= float(final.get("score", 0)) <= 1:
                return Check("", CheckStatus.FAIL, f"score is {final['score']}, not from 0 to 1")
        scores = self.contract.scores
        self.found["rewards"] = [min(scores), max(scores)]
        said = f"rewards from {min(scores):g} to {max(scores):g}"
        if min(scores) == max(scores):
            return Check("", CheckStatus.WARN, f"{said}: all the same for experts and chance")
        return Check("", CheckStatus.PASS, said)

    async def nothing(self) -> Check:
        """Nobody wins who does not do the task, and no words end an episode as a fault."""
        contract = self.contract
        tasks, turns = min(_TASKS_OF_IMPOSTORS, contract.episodes), min(_TURNS_OF_IMPOSTORS, contract.max_turns)
        tried = Nothing(contract.make, contract.source, contract.reward, tasks=tasks, max_turns=turns)
        check = await tried.check()
        self.found["impostors"] = {name: asdict(each) for name, each in tried.attempts.items()}
        return check

    # ------------------------------------------------------------ whether it is the same

    async def same_again(self) -> Check:
        """The same task, seed and actions: the same episode, wherever the chance stands that everybody shares."""
        kept, mover = shared_chance.states(), shared_chance.Mover()
        mend = "draw what is random from the seed of `reset`: random.Random(seed)"
        try:
            for task, played in self._looked_at()[:8]:
                mover.move()
                other = await self._again(task, played, between=mover.between)
                if other.transcript != played.transcript:
                    said = f"task {task.id}: {_difference(played.trajectory, other.trajectory)}"
                    drawn = await self._drawn_from(task, played)
                    said += f"; it draws from {drawn}, which everybody shares" if drawn else ""
                    return Check("", CheckStatus.FAIL, said, mend)
        finally:
            shared_chance.put(kept)
        if mover.touched:
            said = f"the same, but it moves {' and '.join(sorted(mover.touched))}, which everybody shares"
            return Check("", CheckStatus.WARN, said, mend)
        return Check("", CheckStatus.PASS, f"{len(self._looked_at()[:8])} episodes came out the same")

    async def _drawn_from(self, task: Task, played: Played) -> str:
        """The shared generators that decide: led the same way the episode is the same twice, led another it is not."""

        async def led(seed: int, names: Sequence[str]) -> str:
            mover = shared_chance.Mover(seed, names)
            mover.move()
            return (await self._again(task, played, between=mover.between)).transcript

        for names in shared_chance.COMBINATIONS:
            if await led(1, names) == await led(1, names) != await led(2, names):
                return " and ".join(names)
        return ""

    async def _again(self, task: Task, played: Played, **options: Any) -> Played:
        """The actions of an episode again; it ends with them."""
        most = len(played.actions)
        return await play(self.contract.make, task, again(played.actions), seed=_SEED, max_turns=most, **options)

    async def other_process(self) -> Check:
        """The same in a process that has just begun."""
        if not self.contract.needs_process:
            return Check("", CheckStatus.WARN, "left out")
        task, played = self._looked_at()[0]
        try:
            work = pickle.dumps((self.contract.make, task, played.actions))
        except Exception as error:
            said = f"it cannot be sent to another process ({type(error).__name__}), so that was not tried"
            return Check("", CheckStatus.WARN, said)
        digest = await asyncio.to_thread(_digest_in_new_process, work)
        if digest != played.digest:
            said = "the same episode is another one in a new process"
            return Check("", CheckStatus.FAIL, said, "no `hash()` of text, no order of sets, no clock")
        return Check("", CheckStatus.PASS, "the same episode")

    async def side_by_side(self) -> Check:
        """Many at once, step by step in turn: each as if it were alone."""
        count = self.contract.concurrent
        chosen = [self._looked_at()[k % len(self._looked_at())] for k in range(count)]

        async def yielding(environment: Environment, turns: int) -> None:
            await asyncio.sleep(0)

        began = time.perf_counter()
        others = await asyncio.gather(*(self._again(task, played, between=yielding) for task, played in chosen))
        seconds = time.perf_counter() - began
        steps = sum(len(played.actions) for played in others)
        self.found["steps_per_second_64"] = steps / seconds
        self.found["episodes_per_second_64"] = count / seconds
        wrong = sum(o.transcript != p.transcript for o, (_, p) in zip(others, chosen, strict=True))
        if wrong:
            said = f"{wrong} of {count} episodes side by side were not what they are alone"
            return Check("", CheckStatus.FAIL, said, "keep state in the object; else declare isolation: process")
        return Check("", CheckStatus.PASS, f"{count} concurrent episodes equal the sequential ones")

    async def kept(self) -> Check:
        """A snapshot leads back, or the same actions do; one of which neither holds says so."""
        task, played = max(self._looked_at(), key=lambda each: len(each[1].actions))
        environment = self.contract.make()
        if not can_be_kept(environment):
            await environment.close()
            if stateless(environment):
                return Check("", CheckStatus.PASS, "answers depend only on the action (stateless)")
            led_back = replayable(environment)
            said = "no snapshots; led back by the same actions" if led_back else "neither kept nor led back"
            return Check("", CheckStatus.PASS if led_back else CheckStatus.WARN, said)
        try:
            middle = len(played.actions) // 2
            await environment.reset(task, seed=_SEED)
            for action in played.actions[:middle]:
                await environment.step(action)
            kept = await call_user_function(environment.snapshot)  # type: ignore[attr-defined]
            ways: list[Any] = []
            for _ in range(2):
                shown: list[Any] = []
                for action in played.actions[middle:]:
                    result = await environment.step(action)
                    shown.append((result.observation.messages, result.reward, result.ended))
                final = await call_user_function(environment.verdict) if fulfils(environment, GivesVerdict) else {}
                ways.append((shown, final))
                await call_user_function(environment.restore, kept)  # type: ignore[attr-defined]
        finally:
            await environment.close()
        if ways[0] != ways[1]:
            said = f"behind a snapshot at turn {middle} the same actions led elsewhere"
            return Check("", CheckStatus.FAIL, said, "keep everything that decides what comes next")
        return Check("", CheckStatus.PASS, f"a snapshot at turn {middle} led back")

    # ------------------------------------------------------------ how it behaves

    async def endings(self) -> Check:
        """Behind the end nothing more happens; closing is allowed at any time, and twice; reset begins anew."""
        notes = []
        task, played = min(self._looked_at(), key=lambda each: len(each[1].actions))
        environment = self.contract.make()
        await environment.close()  # before anything began
        environment = self.contract.make()
        try:
            await environment.reset(task, seed=_SEED)
            for action in played.actions:
                result = await environment.step(action)
            if result.ended is not None and not fulfils(environment, HoldsTools):
                try:
                    await environment.step(played.actions[-1])
                    notes.append("a step behind the end is carried out")
                except EpisodeError:
                    pass
                except InfrastructureError:
                    notes.append("a step behind the end looks like a failure of the machine")
            await environment.reset(task, seed=_SEED)
        finally:
            await environment.close()
            await environment.close()
        if notes:
            return Check("", CheckStatus.WARN, "; ".join(notes), "raise EpisodeError there")
        return Check("", CheckStatus.PASS, "closed before the end, in the middle and twice; reset after the end")

    async def strange(self) -> Check:
        """Actions nobody should give are answered, never raised."""
        task = self._looked_at()[0][0]
        for action in _STRANGE:
            environment = self.contract.make()
            try:
                await environment.reset(task, seed=_SEED)
                await environment.step(action)
            except Exception as error:
                given = (action.text or str(action.tool_calls or action.malformed))[:40]
                said = f"{given!r} raised {describe_exception(error)}"[:300]
                return Check("", CheckStatus.FAIL, said, "answer it with what would be right")
            finally:
                await environment.close()
        return Check("", CheckStatus.PASS, f"{len(_STRANGE)} were answered")

    async def speed(self) -> Check:
        """Steps and episodes a second, alone and side by side."""
        seconds = [played.seconds for _, played in self._looked_at()]
        steps = [len(played.actions) / max(1e-9, played.seconds) for _, played in self._looked_at()]
        self.found |= {"steps_per_second": median(steps), "episodes_per_second": 1 / max(1e-9, median(seconds))}
        found = self.found
        said = (
            f"alone {found['steps_per_second']:,.0f} steps and {found['episodes_per_second']:,.0f} episodes a second; "
            f"{self.contract.concurrent} side by side {found.get('steps_per_second_64', 0):,.0f} and "
            f"{found.get('episodes_per_second_64', 0):,.0f}"
        )
        return Check("", CheckStatus.PASS, said)

    # ------------------------------------------------------------ what they are made of

    async def _play(self, task: Task, policy: Policy, **options: Any) -> Played:
        return await play(self.contract.make, task, policy, seed=_SEED, max_turns=self.contract.max_turns, **options)

    @staticmethod
    def _expert(source: Expert, task: Task) -> Policy:
        return lambda conversation, tools, admissible: source.demonstrate(task, conversation, tools)

    async def _solved(self, played: Played, task: Task) -> bool:
        score = await self.contract.reward(played.trajectory, task)
        self.contract.scores.append(score.value)
        return bool(score.success)


def _difference(one: Trajectory, other: Trajectory) -> str:
    """Where two episodes part."""
    if one.opening != other.opening:
        return "it begins otherwise the second time"
    for number, (a, b) in enumerate(zip(one.turns, other.turns, strict=False)):
        if a.observation != b.observation:
            return f"turn {number + 1} is answered otherwise the second time"
        if a.reward != b.reward:
            return f"turn {number + 1} is rewarded otherwise the second time"
    return f"it ends by {one.ended} and {other.ended}, with {dict(one.final)} and {dict(other.final)}"


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
        played = asyncio.run(play(make, task, again(actions), seed=_SEED, max_turns=len(actions)))
        sender.send((played.digest, ""))
    except Exception as error:
        sender.send(("", describe_exception(error)))
