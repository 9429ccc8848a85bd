"""Audit of a reward: scores right and wrong episodes of the same tasks; no wrong one may be paid like a right one.

    expert and impostors play → an independent test marks right episodes → scores → comparisons

Checks: the reward varies; a right episode outscores every wrong one; an episode without an action, with nonsense or
with an early stop never wins; giving up pays no more than failing honestly; what cannot be judged is invalid and has no
score; the same episode has the same score again; components keep their names; small changes of weights change no order.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.environments import Environment
from whetstone.evaluation.audit.deserving import deserves
from whetstone.evaluation.audit.players import (
    IDLE,
    NEVER_ACT,
    PLAYERS,
    STOP_EARLY,
    UNFINISHED,
    Player,
    Seen,
    unfinished,
)  # fmt: skip
from whetstone.evaluation.audit.tripwire import DeadJudge, Tripwire
from whetstone.evaluation.checks import Check, CheckStatus
from whetstone.evaluation.contract.luck import chance_of, explained, of_episode
from whetstone.evaluation.contract.playing import play
from whetstone.rewards import Compares, Composed, Reward, compared, scored
from whetstone.rewards.judge_usage import with_judges
from whetstone.rewards.judged.material import transcript
from whetstone.rewards.learned.model import Pair
from whetstone.tasks import Expert, Source
from whetstone.trajectory import EndReason, Task, Trajectory
from whetstone.user_code import describe_exception

REWARD_VARIES = "reward varies"
"""Name of the check that fails for a constant reward."""
_CLOSE = 1e-9
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Tried:
    """One episode with its score."""

    player: str
    task: Task
    trajectory: Trajectory
    """With its score, if the reward returned one."""
    deserved: bool | None
    """None if it is a matter of judgment; the episode is then not compared."""
    luck: float = 0.0
    """The probability that random moves are right."""

    @property
    def value(self) -> float | None:
        """The outcome."""
        return self.trajectory.score.value if self.trajectory.score is not None else None

    @property
    def total(self) -> float | None:
        """The outcome and what its turns were paid."""
        score = self.trajectory.score
        return score.value + sum(score.turns or ()) if score is not None else None


@dataclass(frozen=True, slots=True)
class _Probe:
    """The score of a right episode without one thing that a reward can read."""

    name: str
    """Name of the missing thing."""
    is_read: bool
    value: float | None
    """None if the episode has no score."""


@dataclass(slots=True)
class Audit:
    """What is tried, and what was found.

    Args:
        make: Makes an environment.
        source: Its tasks; where it has an expert, he plays, else what stands in `private["answer"]` is said.
        reward: What is tried.
        tasks: How many.
        max_turns: Of an episode.
    """

    make: Callable[[], Environment]
    source: Source
    reward: Reward
    tasks: int = 6
    max_turns: int = 12
    tried: list[Tried] = field(default_factory=list)

    async def checks(self) -> AsyncIterator[Check]:
        """One after the other."""
        began = time.perf_counter()
        num_skipped = 0
        for number in range(self.tasks):
            tried = await self._task(self.source.task(number), number)
            expert = next(one.trajectory for one in tried if one.player == "expert")
            needed = any(call.outcome == "not_called" for call in expert.calls)
            num_skipped += needed
            self.tried += [] if needed else tried
        if num_skipped:
            reason = "the expert needs tools that are not called"
            yield Check("tools", CheckStatus.WARN, f"{num_skipped} of {self.tasks} tasks are not tried: {reason}")
        if not self.tried:
            return
        seconds = time.perf_counter() - began
        constant = await self._constancy()
        if constant is not None:
            yield replace(constant, seconds=seconds)
            seconds = 0.0
        orders = () if constant is not None else (self._order, self._nothing)
        for check in (self._invalid, *orders, self._giving_up, self._turns, self._names):
            found = check()
            if found is not None:
                yield replace(found, seconds=seconds)
                seconds = 0.0
        for later in (self._failures, self._again, self._weights):
            began = time.perf_counter()
            found = await later()
            if found is not None:
                yield replace(found, seconds=time.perf_counter() - began)

    @property
    def constant(self) -> float | None:
        """The reward of every episode, with the rewards of its turns, if all are equal; else None."""
        totals = [one.total for one in self.tried if one.total is not None]
        return totals[0] if totals and max(totals) - min(totals) <= _CLOSE else None

    def table(self) -> list[dict[str, Any]]:
        """By player: episodes, share that deserved it, mean score of those and of the others, share without a score."""
        rows = []
        for player in (*PLAYERS, UNFINISHED):
            mine = [one for one in self.tried if one.player == player]
            if mine:
                scores = {
                    kind: [one.value for one in mine if bool(one.deserved) is kind and one.value is not None]
                    for kind in (True, False)
                }
                rows.append(
                    {
                        "player": player,
                        "episodes": len(mine),
                        "deserved": fmean(bool(one.deserved) for one in mine),
                        "score_deserved": fmean(scores[True]) if scores[True] else None,
                        "score_undeserved": fmean(scores[False]) if scores[False] else None,
                        "invalid": fmean(one.value is None for one in mine),
                    }
                )
        return rows

    def pairs(self) -> list[list[Pair]]:
        """By task, its good episode beside each bad one that tried, as texts."""
        found = []
        for tried in self._by_task():
            good = next((one for one in tried if one.player == "expert" and one.deserved), None)
            bad = [one for one in tried if one.deserved is False]
            if good is not None and bad:
                better = transcript(good.trajectory)
                found.append([Pair(better, transcript(one.trajectory)) for one in bad])
        return found

    async def _task(self, task: Task, number: int) -> list[Tried]:
        played: dict[str, Trajectory] = {}
        luck: dict[str, float] = {}
        for name, player in PLAYERS.items():
            played[name], luck[name] = await self._played(task, player(number), name, f"audit-{number}/{name}")
        played[UNFINISHED] = unfinished(played["expert"], f"audit-{number}/{UNFINISHED}")
        alone = [await scored(self.reward, trajectory, task) for trajectory in played.values()]
        together = await compared(self.reward, alone, task)
        expert = played["expert"]
        return [
            Tried(name, task, trajectory, deserves(played[name], expert, task, name), luck.get(name, 0.0))
            for name, trajectory in zip(played, together, strict=True)
        ]

    async def _played(self, task: Task, player: Player, name: str, id: str) -> tuple[Trajectory, float]:
        """(the episode, the chance that it went well by luck)"""
        turn = 0
        chances: list[float | None] = []

        def policy(conversation: Sequence[Message], tools: Sequence[ToolSpec], admissible: Sequence[str]) -> Message:
            nonlocal turn
            said = self._expert(task, conversation, tools)
            seen = Seen(conversation, tools, admissible, said, turn, isinstance(self.source, Expert))
            turn += 1
            action = player(seen)
            chances.append(chance_of(action, admissible, tools))
            return action

        try:
            found = await play(self.make, task, policy, seed=7, max_turns=self.max_turns)
        except Exception as error:
            if name not in (*NEVER_ACT, *STOP_EARLY):
                raise
            said = describe_exception(error).splitlines()[0]
            return Trajectory(id, task.id, (), (), EndReason.ERROR, error=said), 0.0
        return replace(found.trajectory, id=id), of_episode(chances)

    def _expert(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message | None:
        if isinstance(self.source, Expert):
            try:
                return self.source.demonstrate(task, conversation, tools)
            except Exception:  # an expert knows his own way, and not what becomes of others'
                return assistant("")
        return assistant(str(task.private["answer"])) if "answer" in task.private else None

    # ------------------------------------------------------------ of scores there are

    def _by_task(self) -> list[list[Tried]]:
        found: dict[str, list[Tried]] = defaultdict(list)
        for one in self.tried:
            found[one.task.id].append(one)
        return list(found.values())

    def _paid(self, one: Tried) -> float | None:
        """The outcome; with its turns where outcomes are all the same, since turns are all there is to be paid then."""
        return one.total if self._turns_are_all else one.value

    @property
    def _turns_are_all(self) -> bool:
        return len({one.value for one in self.tried if one.value is not None}) <= 1

    def _invalid(self) -> Check | None:
        experts = [one for one in self.tried if one.player == "expert"]
        lost = [one for one in experts if one.value is None]
        if lost:
            said = f"{len(lost)} of {len(experts)} good episodes have no score: {lost[0].trajectory.error}"
            return Check("can judge", CheckStatus.FAIL, said, "the reward must be able to judge what an expert does")
        bad = [one for one in self.tried if one.value is None]
        if bad:
            said = f"{len(bad)} of {len(self.tried)} episodes have no score: {bad[0].trajectory.error}"
            return Check("can judge", CheckStatus.WARN, said)
        return Check(
            "can judge", CheckStatus.PASS, f"{len(self.tried)} episodes of {len(self._by_task())} tasks have a score"
        )

    async def _constancy(self) -> Check | None:
        """Report a reward that is the same for every episode: no order of episodes can then be checked."""
        constant = self.constant
        if constant is None:
            return None
        said = f"the reward is {constant:.3g} in all {len(self.tried)} episodes of {len(self._by_task())} tasks"
        has_answers = isinstance(self.source, Expert) or any("answer" in one.task.private for one in self.tried)
        if not has_answers or not any(one.player == "expert" and one.deserved for one in self.tried):
            mend = "give the task source an expert (`demonstrate`) or the tasks an `answer`"
            return Check(REWARD_VARIES, CheckStatus.WARN, f"{said}, of which none is known to be right", mend)
        read = [probe.name for probe in await self._probe() if probe.is_read]
        if read:
            said += f"; it reads {' and '.join(read)}, and its result does not depend on the episode"
            mend = "print both sides of its comparison for a right episode: a number never equals a text"
        else:
            said += "; it reads neither the task's private data nor the environment's verdict"
            mend = "compare `trajectory.final_text` (or `trajectory.final`) with `task.private`"
        return Check(REWARD_VARIES, CheckStatus.FAIL, said, mend)

    def _order(self) -> Check:
        faults, pairs = [], 0
        for tried in self._by_task():
            good = [(self._paid(one), one) for one in tried if one.deserved and self._paid(one) is not None]
            bad = [(self._paid(one), one) for one in tried if one.deserved is False and self._paid(one) is not None]
            if not good:
                continue
            least, worst = min(good, key=lambda pair: pair[0] or 0.0)
            for value, one in bad:
                pairs += 1
                assert value is not None
                assert least is not None
                if value >= least - _CLOSE:
                    faults.append(f"{one.player} has {value:.3g} where {worst.player} has {least:.3g}")
        if not pairs:
            return Check(
                "good before bad",
                CheckStatus.WARN,
                "nothing to compare: no task has a good and a bad episode",
            )
        if not faults:
            return Check(
                "good before bad", CheckStatus.PASS, f"in {pairs} of {pairs} comparisons the good episode is paid more"
            )
        said = f"in {len(faults)} of {pairs} comparisons a bad episode is paid as much as a good one: {_some(faults)}"
        return Check(
            "good before bad", CheckStatus.FAIL, said, "compare whole answers, with their types; set judged text apart"
        )

    def _nothing(self) -> Check:
        """Nobody is called a success, or paid as the expert is, who did nothing, said nonsense, or stopped at once more
        often than luck explains."""
        faults, right = [], self._rightly_silent
        for player in (*NEVER_ACT, *STOP_EARLY):
            mine = [o for o in self.tried if o.player == player and o.deserved is not True and o.task.id not in right]
            won = [one for one in mine if self._won(one)]
            lucky = player in STOP_EARLY and explained(len(won), [one.luck for one in mine])
            if won and not lucky:
                faults.append(f"{player} wins {len(won)} of {len(mine)} ({won[0].task.id})")
            lost = [one for one in mine if one.value is None]
            if lost:
                said = f"{player} has no score in {len(lost)} of {len(mine)}: {lost[0].trajectory.error}"
                faults.append(ascii(said)[1:-1])
        if faults:
            mend = "pay for what was done in the world, and let no words end an episode as a fault"
            return Check("nothing for nothing", CheckStatus.FAIL, _some(faults), mend)
        return Check(
            "nothing for nothing", CheckStatus.PASS, "neither nonsense nor stopping at once is paid as the task is"
        )

    @property
    def _rightly_silent(self) -> set[str]:
        """Tasks of which the expert calls no tool, and is right, where he calls some of others: to say anything does
        what is asked for there."""
        expert = [one for one in self.tried if one.player == "expert" and one.deserved]
        calls = any(one.trajectory.calls for one in expert)
        return {one.task.id for one in expert if calls and not one.trajectory.calls}

    def _won(self, one: Tried) -> bool:
        """Whether it is a success to the reward, or paid as the best is that did the task, where there is one."""
        score, value = one.trajectory.score, self._paid(one)
        if score is None or value is None:
            return False
        of_expert = [
            self._paid(other)
            for other in self.tried
            if other.task.id == one.task.id and other.player == "expert" and other.deserved
        ]
        return bool(score.success) or any(paid is not None and value >= paid - _CLOSE for paid in of_expert)

    def _giving_up(self) -> Check | None:
        faults, pairs = [], 0
        for tried in self._by_task():
            honest = next((one for one in tried if one.player == "failing" and one.deserved is False), None)
            if honest is None or self._paid(honest) is None:
                continue
            for one in tried:
                if one.player in IDLE and one.deserved is False and self._paid(one) is not None:
                    pairs += 1
                    idle, tries = self._paid(one), self._paid(honest)
                    assert idle is not None
                    assert tries is not None
                    if idle > tries + _CLOSE:
                        faults.append(f"{one.player} has {idle:.3g}, an honest failure {tries:.3g}")
        if not pairs:
            return None
        if not faults:
            return Check(
                "no pay for giving up", CheckStatus.PASS, f"{pairs} idle episodes are paid no more than honest failures"
            )
        said = f"{len(faults)} of {pairs} idle episodes are paid more than an honest failure: {_some(faults)}"
        mend = "put what is paid for efficiency behind a right answer: `gate` or `times` in `composed`"
        return Check("no pay for giving up", CheckStatus.FAIL, said, mend)

    def _turns(self) -> Check | None:
        """What turns are paid, added up; a note, since estimators may compare turns with turns."""
        if self._turns_are_all or not any(one.trajectory.score and one.trajectory.score.turns for one in self.tried):
            return None
        faults = []
        for tried in self._by_task():
            good = [one.total for one in tried if one.deserved and one.total is not None]
            for one in tried:
                if good and one.deserved is False and one.total is not None and one.total >= min(good) - _CLOSE:
                    faults.append(f"{one.player} has {one.total:.3g}, a good episode {min(good):.3g}")
        if not faults:
            return Check(
                "turns added up",
                CheckStatus.PASS,
                "with the rewards of turns, no bad episode reaches a good one",
            )
        mend = "fine if the estimator compares turns with turns; if it sums their rewards, use reward_shaping: gated"
        return Check("turns added up", CheckStatus.WARN, f"with what turns are paid, {_some(faults)}", mend)

    def _names(self) -> Check | None:
        names = {frozenset(one.trajectory.score.parts) for one in self.tried if one.trajectory.score is not None}
        if len(names) <= 1:
            return Check(
                "components", CheckStatus.PASS, f"always the same: {', '.join(sorted(next(iter(names), frozenset())))}"
            )
        changing = sorted(frozenset.union(*names) - frozenset.intersection(*names))
        said = f"not always there: {', '.join(changing)}; their means are over the episodes that have them"
        return Check("components", CheckStatus.WARN, said, "return 0 for an absent component")

    # ------------------------------------------------------------ of what it does when asked again

    async def _probe(self) -> list[_Probe]:
        """Score an episode of the expert again, without each thing that a reward can read."""
        one = next((one for one in self.tried if one.player == "expert" and one.value is not None), None)
        if one is None:
            return []
        bare = replace(one.trajectory, score=None)
        private, final, judge = Tripwire(), Tripwire(), DeadJudge()
        # a group is scored together, or a reward that compares would never be called
        cases: list[tuple[str, Callable[[], bool], Reward, Trajectory, Task]] = [
            ("the task's private data", lambda: private.touched, self.reward, bare, replace(one.task, private=private)),
            ("the environment's verdict", lambda: final.touched, self.reward, replace(bare, final=final), one.task),
            ("its judge", lambda: judge.meter.requests > 0, with_judges(self.reward, lambda _: judge), bare, one.task),
        ]
        probes = []
        for name, used, reward, trajectory, task in cases:
            judged = await scored(reward, trajectory, task)
            if judged.score is not None and isinstance(reward, Compares):
                (judged,) = await compared(reward, [judged], task)
            probes.append(_Probe(name, used(), judged.score.value if judged.score is not None else None))
        return probes

    async def _failures(self) -> Check | None:
        probes = await self._probe()
        if not probes:
            return None
        tried = [probe.name for probe in probes if probe.is_read]
        faults = [
            f"without {probe.name} it says {probe.value:.3g}"
            for probe in probes
            if probe.is_read and probe.value is not None
        ]
        if faults:
            mend = "let the exception through, or say Score.unknown(why): a failure is never a number"
            return Check("failures are no numbers", CheckStatus.FAIL, "; ".join(faults), mend)
        if not tried:
            return Check("failures are no numbers", CheckStatus.WARN, "it reads nothing that could fail")
        return Check("failures are no numbers", CheckStatus.PASS, f"without {', '.join(tried)} it returns no score")

    async def _again(self) -> Check:
        changed = []
        for one in self.tried:
            if isinstance(self.reward, Compares) or one.value is None:
                continue
            found = await scored(self.reward, replace(one.trajectory, score=None), one.task)
            if found.score is None or abs(found.score.value - one.value) > _CLOSE:
                changed.append(f"{one.player}: {one.value:.3g}, then {found.score.value if found.score else 'nothing'}")
        if changed:
            mend = "a reward is a function of the episode alone; a judge needs temperature 0 and a cache"
            return Check("the same again", CheckStatus.WARN, f"{len(changed)} scores differ: {_some(changed)}", mend)
        return Check("the same again", CheckStatus.PASS, "every score is the same when it is asked again")

    async def _weights(self) -> Check | None:
        """Where a change of one per cent in a weight changes who is best, what is learned hangs by a thread."""
        if not isinstance(self.reward, Composed):
            return None
        faults = []
        for name, term in self.reward.terms.items():
            for factor in (0.99, 1.01):
                changed = replace(term, weight=term.weight * factor)
                other = Composed(terms={**self.reward.terms, name: changed}, success=self.reward.success)
                for tried in self._by_task():
                    told = [one for one in tried if one.value is not None]
                    alone = [await scored(other, replace(one.trajectory, score=None), one.task) for one in told]
                    values = [t.score.value if t.score else 0.0 for t in await compared(other, alone, tried[0].task)]
                    before = [one.value or 0.0 for one in told]
                    if _best(values) != _best(before):
                        faults.append(f"terms.{name} times {factor:g}")
        if faults:
            return Check(
                "weights",
                CheckStatus.WARN,
                f"who is best changes with {_some(sorted(set(faults)))}",
                "break the tie on purpose",
            )
        return Check(
            "weights", CheckStatus.PASS, "a change of one per cent in any weight does not change the best player"
        )


def _best(values: Sequence[float]) -> set[int]:
    most = max(values, default=0.0)
    return {place for place, value in enumerate(values) if value >= most - 0.02 * max(1.0, abs(most))}


def _some(faults: Sequence[str]) -> str:
    different = list(dict.fromkeys(faults))
    more = f" and {len(different) - _MOST_SHOWN} more" if len(different) > _MOST_SHOWN else ""
    return "; ".join(different[:_MOST_SHOWN]) + more
