"""Audit of a reward: scores right and wrong episodes of the same tasks; no wrong one may score like a right one.

    expert and impostors play → an independent test marks right episodes → scores → comparisons

Checks: the reward varies; a right episode outscores every wrong one; an episode without an action, with nonsense or
with an early stop never wins; giving up scores no more than an honest failure; an episode that cannot be judged is
invalid and has no score; rescoring gives the same score; components keep their names; small changes of weights change
no order.

Ground truth: whether an episode did its task is decided by the environment, or else by the expert's answer, and never
by the audited reward.

Note:
    An environment can be wrong, too. A player without any action never counts as successful, and for a player that
    stops immediately the result is undecided, since it may be luck. An answer somewhere in a text does not count: it
    must be the last words, or the full text.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NoReturn

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.environments import Environment
from whetstone.errors import InfrastructureError
from whetstone.evaluation.audit.probe_policies import (
    IDLE,
    NEVER_ACT,
    PLAYERS,
    STOP_EARLY,
    UNFINISHED,
    Player,
    PlayerView,
    truncate_last_turn,
)  # fmt: skip
from whetstone.evaluation.check_result import Check, CheckStatus
from whetstone.evaluation.environment_checks.chance_level import (
    is_explained_by_luck,
    lucky_move_probability,
    lucky_win_probability,
)
from whetstone.evaluation.environment_checks.play_episode import play_with_policy
from whetstone.rewards import Composed, GroupReward, Reward, score_group, score_trajectory
from whetstone.rewards.answers.exact_match import normalize_answer, same_answer
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.calls.canonical import list_calls, same_call
from whetstone.rewards.judge_rewards.judge_input import format_episode
from whetstone.rewards.judge_usage import replace_judges
from whetstone.rewards.judges import Meter, Question
from whetstone.rewards.learned.model import EpisodePair
from whetstone.tasks import Expert, Source
from whetstone.trajectory import EndReason, Task, Trajectory
from whetstone.user_code import describe_exception

REWARD_VARIES = "reward varies"
"""Name of the check that fails for a constant reward."""
_CLOSE = 1e-9
_MOST_SHOWN = 3


class Tripped(Exception):
    """The audited reward has read an input that the audit replaced by a `Tripwire`."""


class Tripwire(Mapping[str, Any]):
    """Substitute for a reward's input that raises `Tripped` on any access, to find out whether the reward reads it."""

    def __init__(self) -> None:
        self.touched = False
        """Whether the mapping was accessed."""

    def __getitem__(self, key: str) -> Any:
        self._trip()

    def __iter__(self) -> Iterator[str]:
        self._trip()

    def __len__(self) -> int:
        self._trip()

    def _trip(self) -> NoReturn:
        self.touched = True
        raise Tripped("the audit has replaced this input by one that cannot be read")


class DeadJudge:
    """Substitute for a judge that fails on every question, to test how a reward handles a failing judge."""

    def __init__(self) -> None:
        self.meter = Meter()

    async def answer(self, question: Question) -> Mapping[str, Any]:
        """Count the request and raise `InfrastructureError`, as for an unreachable judge."""
        self.meter.requests += 1
        raise InfrastructureError("the audit has replaced the judge by one that fails")

    async def close(self) -> None:
        """Do nothing; there is no connection to close."""


@dataclass(frozen=True, slots=True)
class AuditedEpisode:
    """One audited episode: who played it, its score, and whether it did the task."""

    player: str
    """Name of the probe policy in `PLAYERS`, or `unfinished`."""
    task: Task
    trajectory: Trajectory
    """The episode, with its score if the reward returned one."""
    deserved: bool | None
    """Whether the episode did its task; None if that is undecided, so that the episode is not compared."""
    luck: float = 0.0
    """Probability that an episode with random moves does the task."""

    @property
    def value(self) -> float | None:
        """Return the outcome reward; None if the episode has no score."""
        return self.trajectory.score.value if self.trajectory.score is not None else None

    @property
    def total(self) -> float | None:
        """Return the outcome reward plus the rewards of all turns; None if the episode has no score."""
        score = self.trajectory.score
        return score.value + sum(score.turns or ()) if score is not None else None


@dataclass(frozen=True, slots=True)
class _Probe:
    """Score of a right episode after one input of the reward was replaced by a `Tripwire`."""

    name: str
    """Name of the replaced input."""
    is_read: bool
    """Whether the reward read the input."""
    value: float | None
    """Outcome reward; None if the episode has no score."""


@dataclass(slots=True)
class Audit:
    """Settings and results of an audit.

    Args:
        make: Function that creates an environment.
        source: Task source; its expert plays, or, without one, `private["answer"]` is given as the answer.
        reward: Reward to audit.
        tasks: Number of tasks.
        max_turns: Maximum number of turns of an episode.
    """

    make: Callable[[], Environment]
    source: Source
    reward: Reward
    tasks: int = 6
    max_turns: int = 12
    tried: list[AuditedEpisode] = field(default_factory=list)

    async def run_checks(self) -> AsyncIterator[Check]:
        """Play and score the episodes, then run all checks; yield each result as soon as it is known."""
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
            yield Check("tools", CheckStatus.WARN, f"{num_skipped} of {self.tasks} tasks are skipped: {reason}")
        if not self.tried:
            return
        seconds = time.perf_counter() - began
        constant = await self._constancy()
        if constant is not None:
            yield replace(constant, seconds=seconds)
            seconds = 0.0
        orders = () if constant is not None else (self._order, self._nothing)
        for check in (self._invalid, *orders, self._giving_up, self._turns, self._names):
            result = check()
            if result is not None:
                yield replace(result, seconds=seconds)
                seconds = 0.0
        for later in (self._failures, self._rescoring, self._weights):
            began = time.perf_counter()
            result = await later()
            if result is not None:
                yield replace(result, seconds=time.perf_counter() - began)

    @property
    def constant_reward(self) -> float | None:
        """Return the total reward that all episodes have in common, including turn rewards; None if they differ."""
        totals = [one.total for one in self.tried if one.total is not None]
        return totals[0] if totals and max(totals) - min(totals) <= _CLOSE else None

    def summarize_players(self) -> list[dict[str, Any]]:
        """Summarize the episodes of each player.

        Returns:
            One row per player: `episodes`, `deserved` (fraction that did the task), `score_deserved` and
            `score_undeserved` (mean rewards of episodes that did and did not; None without such), and `invalid`
            (fraction without a score).
        """
        rows = []
        for player in (*PLAYERS, UNFINISHED):
            own = [one for one in self.tried if one.player == player]
            if own:
                scores = {
                    kind: [one.value for one in own if bool(one.deserved) is kind and one.value is not None]
                    for kind in (True, False)
                }
                rows.append(
                    {
                        "player": player,
                        "episodes": len(own),
                        "deserved": fmean(bool(one.deserved) for one in own),
                        "score_deserved": fmean(scores[True]) if scores[True] else None,
                        "score_undeserved": fmean(scores[False]) if scores[False] else None,
                        "invalid": fmean(one.value is None for one in own),
                    }
                )
        return rows

    def build_pairs(self) -> list[list[EpisodePair]]:
        """Return, for each task, pairs of the expert's right episode and each wrong episode, as texts."""
        pairs = []
        for tried in self._by_task():
            good = next((one for one in tried if one.player == "expert" and one.deserved), None)
            bad = [one for one in tried if one.deserved is False]
            if good is not None and bad:
                better = format_episode(good.trajectory)
                pairs.append([EpisodePair(better, format_episode(one.trajectory)) for one in bad])
        return pairs

    async def _task(self, task: Task, number: int) -> list[AuditedEpisode]:
        played: dict[str, Trajectory] = {}
        luck: dict[str, float] = {}
        for name, player in PLAYERS.items():
            played[name], luck[name] = await self._played(task, player(number), name, f"audit-{number}/{name}")
        played[UNFINISHED] = truncate_last_turn(played["expert"], f"audit-{number}/{UNFINISHED}")
        alone = [await score_trajectory(self.reward, trajectory, task) for trajectory in played.values()]
        together = await score_group(self.reward, alone, task)
        expert = played["expert"]
        return [
            AuditedEpisode(
                name, task, trajectory, task_completed(played[name], expert, task, name), luck.get(name, 0.0)
            )
            for name, trajectory in zip(played, together, strict=True)
        ]

    async def _played(self, task: Task, player: Player, name: str, id: str) -> tuple[Trajectory, float]:
        """Play an episode; return (trajectory, probability of success by luck)."""
        turn = 0
        chances: list[float | None] = []

        def policy(conversation: Sequence[Message], tools: Sequence[ToolSpec], admissible: Sequence[str]) -> Message:
            nonlocal turn
            expert_message = self._expert(task, conversation, tools)
            seen = PlayerView(conversation, tools, admissible, expert_message, turn, isinstance(self.source, Expert))
            turn += 1
            action = player(seen)
            chances.append(lucky_move_probability(action, admissible, tools))
            return action

        try:
            episode = await play_with_policy(self.make, task, policy, seed=7, max_turns=self.max_turns)
        except Exception as error:
            if name not in (*NEVER_ACT, *STOP_EARLY):
                raise
            reason = describe_exception(error).splitlines()[0]
            return Trajectory(id, task.id, (), (), EndReason.ERROR, error=reason), 0.0
        return replace(episode.trajectory, id=id), lucky_win_probability(chances)

    def _expert(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message | None:
        if isinstance(self.source, Expert):
            try:
                return self.source.demonstrate(task, conversation, tools)
            except Exception:  # an expert knows only its own path
                return assistant("")
        return assistant(str(task.private["answer"])) if "answer" in task.private else None

    # ------------------------------------------------------------ checks of existing scores

    def _by_task(self) -> list[list[AuditedEpisode]]:
        by_task: dict[str, list[AuditedEpisode]] = defaultdict(list)
        for one in self.tried:
            by_task[one.task.id].append(one)
        return list(by_task.values())

    def _paid(self, one: AuditedEpisode) -> float | None:
        """Return the reward to compare: the outcome, or the total with turn rewards if all outcomes are equal."""
        return one.total if self._turns_are_all else one.value

    @property
    def _turns_are_all(self) -> bool:
        return len({one.value for one in self.tried if one.value is not None}) <= 1

    def _invalid(self) -> Check | None:
        experts = [one for one in self.tried if one.player == "expert"]
        lost = [one for one in experts if one.value is None]
        if lost:
            message = f"{len(lost)} of {len(experts)} right episodes have no score: {lost[0].trajectory.error}"
            return Check("can judge", CheckStatus.FAIL, message, "the reward must be able to score the expert")
        bad = [one for one in self.tried if one.value is None]
        if bad:
            message = f"{len(bad)} of {len(self.tried)} episodes have no score: {bad[0].trajectory.error}"
            return Check("can judge", CheckStatus.WARN, message)
        return Check(
            "can judge", CheckStatus.PASS, f"{len(self.tried)} episodes of {len(self._by_task())} tasks have a score"
        )

    async def _constancy(self) -> Check | None:
        """Report a reward that is the same for every episode, so that episodes cannot be compared; otherwise None."""
        constant = self.constant_reward
        if constant is None:
            return None
        message = f"the reward is {constant:.3g} in all {len(self.tried)} episodes of {len(self._by_task())} tasks"
        has_answers = isinstance(self.source, Expert) or any("answer" in one.task.private for one in self.tried)
        if not has_answers or not any(one.player == "expert" and one.deserved for one in self.tried):
            mend = "give the task source an expert (`demonstrate`) or the tasks an `answer`"
            return Check(REWARD_VARIES, CheckStatus.WARN, f"{message}, of which none is known to be right", mend)
        read = [probe.name for probe in await self._probe() if probe.is_read]
        if read:
            message += f"; it reads {' and '.join(read)}, and its result does not depend on the episode"
            mend = "print both sides of its comparison for a right episode: a number never equals a text"
        else:
            message += "; it reads neither the task's private data nor the environment's verdict"
            mend = "compare `trajectory.final_text` (or `trajectory.final`) with `task.private`"
        return Check(REWARD_VARIES, CheckStatus.FAIL, message, mend)

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
                    faults.append(f"{one.player} has {value:.3g}, {worst.player} has {least:.3g}")
        if not pairs:
            return Check("good before bad", CheckStatus.WARN, "no task has a right and a wrong episode to compare")
        if not faults:
            return Check(
                "good before bad", CheckStatus.PASS, f"in {pairs} of {pairs} comparisons the right episode scores more"
            )
        message = (
            f"in {len(faults)} of {pairs} comparisons a wrong episode scores as much as a right one: {_some(faults)}"
        )
        mend = "compare full answers, with their types; delimit judged text"
        return Check("good before bad", CheckStatus.FAIL, message, mend)

    def _nothing(self) -> Check:
        """Check that players without an action or with nonsense never win, and early stops only by luck."""
        faults, right = [], self._rightly_silent
        for player in (*NEVER_ACT, *STOP_EARLY):
            own = [o for o in self.tried if o.player == player and o.deserved is not True and o.task.id not in right]
            won = [one for one in own if self._won(one)]
            lucky = player in STOP_EARLY and is_explained_by_luck(len(won), [one.luck for one in own])
            if won and not lucky:
                faults.append(f"{player} wins {len(won)} of {len(own)} ({won[0].task.id})")
            lost = [one for one in own if one.value is None]
            if lost:
                message = f"{player} has no score in {len(lost)} of {len(own)}: {lost[0].trajectory.error}"
                faults.append(ascii(message)[1:-1])
        if faults:
            mend = "reward changes of the environment's state, and let no text end an episode with an error"
            return Check("nothing for nothing", CheckStatus.FAIL, _some(faults), mend)
        return Check("nothing for nothing", CheckStatus.PASS, "neither nonsense nor an early stop scores like the task")

    @property
    def _rightly_silent(self) -> set[str]:
        """Return the ids of tasks that the expert solves without a tool, if it uses tools for other tasks."""
        expert = [one for one in self.tried if one.player == "expert" and one.deserved]
        calls = any(one.trajectory.calls for one in expert)
        return {one.task.id for one in expert if calls and not one.trajectory.calls}

    def _won(self, one: AuditedEpisode) -> bool:
        """Return whether the reward reports success, or at least as much as for the expert's right episode."""
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
                "no pay for giving up", CheckStatus.PASS, f"{pairs} idle episodes score no more than honest failures"
            )
        message = f"{len(faults)} of {pairs} idle episodes score more than an honest failure: {_some(faults)}"
        mend = "make efficiency rewards depend on a right answer: `gate` or `times` in `composed`"
        return Check("no pay for giving up", CheckStatus.FAIL, message, mend)

    def _turns(self) -> Check | None:
        """Check that sums of turn rewards favor right episodes; a failure is only a warning.

        Advantage estimators may compare turns with turns rather than sums.
        """
        if self._turns_are_all or not any(one.trajectory.score and one.trajectory.score.turns for one in self.tried):
            return None
        faults = []
        for tried in self._by_task():
            good = [one.total for one in tried if one.deserved and one.total is not None]
            for one in tried:
                if good and one.deserved is False and one.total is not None and one.total >= min(good) - _CLOSE:
                    faults.append(f"{one.player} has {one.total:.3g}, a right episode {min(good):.3g}")
        if not faults:
            return Check(
                "turns added up",
                CheckStatus.PASS,
                "with the rewards of turns, no wrong episode reaches a right one",
            )
        mend = "fine if the estimator compares turns with turns; if it sums their rewards, use reward_shaping: gated"
        return Check("turns added up", CheckStatus.WARN, f"with the rewards of turns, {_some(faults)}", mend)

    def _names(self) -> Check | None:
        names = {frozenset(one.trajectory.score.parts) for one in self.tried if one.trajectory.score is not None}
        if len(names) <= 1:
            return Check(
                "components",
                CheckStatus.PASS,
                f"equal in all episodes: {', '.join(sorted(next(iter(names), frozenset())))}",
            )
        changing = sorted(frozenset.union(*names) - frozenset.intersection(*names))
        message = f"missing in some episodes: {', '.join(changing)}; their means are over the episodes that have them"
        return Check("components", CheckStatus.WARN, message, "return 0 for an absent component")

    # ------------------------------------------------------------ checks that score again

    async def _probe(self) -> list[_Probe]:
        """Score an episode of the expert again, each time without one of the reward's inputs."""
        one = next((one for one in self.tried if one.player == "expert" and one.value is not None), None)
        if one is None:
            return []
        bare = replace(one.trajectory, score=None)
        private, final, judge = Tripwire(), Tripwire(), DeadJudge()
        # a group is scored together, or a reward that compares would never be called
        cases: list[tuple[str, Callable[[], bool], Reward, Trajectory, Task]] = [
            ("the task's private data", lambda: private.touched, self.reward, bare, replace(one.task, private=private)),
            ("the environment's verdict", lambda: final.touched, self.reward, replace(bare, final=final), one.task),
            (
                "its judge",
                lambda: judge.meter.requests > 0,
                replace_judges(self.reward, lambda _: judge),
                bare,
                one.task,
            ),
        ]
        probes = []
        for name, used, reward, trajectory, task in cases:
            judged = await score_trajectory(reward, trajectory, task)
            if judged.score is not None and isinstance(reward, GroupReward):
                (judged,) = await score_group(reward, [judged], task)
            probes.append(_Probe(name, used(), judged.score.value if judged.score is not None else None))
        return probes

    async def _failures(self) -> Check | None:
        probes = await self._probe()
        if not probes:
            return None
        tried = [probe.name for probe in probes if probe.is_read]
        faults = [
            f"without {probe.name} it returns {probe.value:.3g}"
            for probe in probes
            if probe.is_read and probe.value is not None
        ]
        if faults:
            mend = "do not catch the exception, or return Score.unknown(why): a failure is never a number"
            return Check("failures are no numbers", CheckStatus.FAIL, "; ".join(faults), mend)
        if not tried:
            return Check("failures are no numbers", CheckStatus.WARN, "it reads nothing that could fail")
        return Check("failures are no numbers", CheckStatus.PASS, f"without {', '.join(tried)} it returns no score")

    async def _rescoring(self) -> Check:
        changed = []
        for one in self.tried:
            if isinstance(self.reward, GroupReward) or one.value is None:
                continue
            rescored = await score_trajectory(self.reward, replace(one.trajectory, score=None), one.task)
            if rescored.score is None or abs(rescored.score.value - one.value) > _CLOSE:
                changed.append(
                    f"{one.player}: {one.value:.3g}, then {rescored.score.value if rescored.score else 'nothing'}"
                )
        if changed:
            mend = "a reward must depend only on the episode; a judge needs temperature 0 and a cache"
            return Check("the same again", CheckStatus.WARN, f"{len(changed)} scores differ: {_some(changed)}", mend)
        return Check("the same again", CheckStatus.PASS, "every score is the same when it is recomputed")

    async def _weights(self) -> Check | None:
        """Check that a change of one percent in a weight does not change the best player."""
        if not isinstance(self.reward, Composed):
            return None
        faults = []
        for name, term in self.reward.terms.items():
            for factor in (0.99, 1.01):
                changed = replace(term, weight=term.weight * factor)
                other = self.reward.with_terms({**self.reward.terms, name: changed})
                for tried in self._by_task():
                    with_score = [one for one in tried if one.value is not None]
                    alone = [
                        await score_trajectory(other, replace(one.trajectory, score=None), one.task)
                        for one in with_score
                    ]
                    values = [t.score.value if t.score else 0.0 for t in await score_group(other, alone, tried[0].task)]
                    before = [one.value or 0.0 for one in with_score]
                    if _best(values) != _best(before):
                        faults.append(f"terms.{name} times {factor:g}")
        if faults:
            return Check(
                "weights",
                CheckStatus.WARN,
                f"the best player changes with {_some(sorted(set(faults)))}",
                "break the tie on purpose",
            )
        return Check(
            "weights", CheckStatus.PASS, "a change of one percent in any weight does not change the best player"
        )


def _best(values: Sequence[float]) -> set[int]:
    most = max(values, default=0.0)
    return {place for place, value in enumerate(values) if value >= most - 0.02 * max(1.0, abs(most))}


def _some(faults: Sequence[str]) -> str:
    different = list(dict.fromkeys(faults))
    more = f" and {len(different) - _MOST_SHOWN} more" if len(different) > _MOST_SHOWN else ""
    return "; ".join(different[:_MOST_SHOWN]) + more


# ------------------------------------------------------------ ground truth: whether an episode did its task


def task_completed(trajectory: Trajectory, expert: Trajectory, task: Task, player: str = "") -> bool | None:
    """Return whether an episode did its task; None if undecided.

    The environment's `success` decides, or else the comparison with the expert's answer or calls. The result is
    undecided if the right answer follows other words, which some rewards accept, or if success may be luck.

    Args:
        trajectory: The episode.
        expert: The expert's episode of the same task.
        task: The task.
        player: Name of the player of the episode.
    """
    did = _did(trajectory, expert, task)
    return None if did and player in STOP_EARLY else did and not _unmoved(trajectory, player)


def _unmoved(trajectory: Trajectory, player: str) -> bool:
    """Return whether the player never acts and the environment reports success."""
    return player in NEVER_ACT and "success" in trajectory.final


def _did(trajectory: Trajectory, expert: Trajectory, task: Task) -> bool | None:
    """Return the environment's `success` if it reports one; otherwise whether answer or calls equal the expert's."""
    if "success" in trajectory.final and "success" in expert.final:
        solved = bool(trajectory.final["success"])
        return None if trajectory is expert and not solved else solved  # out of turns: no reference
    if trajectory is expert:
        return True
    if trajectory.ended is EndReason.MAX_TOKENS:
        return False
    answer = final_answer(trajectory)
    wanted = final_answer(expert)
    named = "answer" not in task.private and bool({"calls", "possible_answer"} & set(task.private))
    if named or wanted is None or not wanted.strip():  # the task requires calls
        return _calls_like(trajectory, expert)
    if answer is None:
        return False
    known: Sequence[str] = [wanted, *([str(task.private["answer"])] if "answer" in task.private else [])]
    if any(same_answer(answer, one) for one in known):
        return True
    return None if any(_says_last(answer, one) for one in known) else False


def _says_last(answer: str, wanted: str) -> bool:
    words, last_words = normalize_answer(answer).split(), normalize_answer(wanted).split()
    return bool(last_words) and words[-len(last_words) :] == last_words


def _calls_like(trajectory: Trajectory, expert: Trajectory) -> bool:
    calls, expert_calls = list_calls(trajectory), list_calls(expert)
    return len(calls) == len(expert_calls) and all(map(same_call, calls, expert_calls))
