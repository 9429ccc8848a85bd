"""Policies whose turns are advice or subgoals that other agents execute: two environments for `strategy`, `subgoals`.

Negotiation: a frozen agent haggles as advised; without advice it accepts the first price. The best advice depends on
the remaining rounds.

`Errands`: two levels with separate contexts in one episode. The upper level reads the places to visit in order and
names a place as goal; the lower level reads its position and the goal, and walks until it arrives or its steps are used
up. Both levels are the same policy; the reward determines the credit of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import combine_keys, normalize_in_sets
from whetstone.algorithms.returns import reward_to_go
from whetstone.chat import Message, ToolSpec, assistant, user
from whetstone.environments.built_in.negotiation import NegotiationTasks
from whetstone.environments.protocol import NEW_CONVERSATION, Observation, StepResult
from whetstone.rewards.protocol import provides
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

ADVICE = ("low", "half", "near", "take")
_ASKS = re.compile(r"seller asks (\d+)")


class Deals(NegotiationTasks):
    """Same as `negotiation`, with random advice in demonstrations.

    Args:
        seed: Same as for `Generated`.
        levels: Same as for `Generated`.
        shown: Whether every result counts as right; for demonstrations, because only successful ones are imitated.
    """

    def __init__(self, *, seed: int = 0, levels: list[int] | None = None, shown: bool = False) -> None:
        super().__init__(seed=seed, levels=levels)
        self.shown = shown

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        task = super().make(draw, level)
        return replace(task, private={**task.private, "shown": self.shown})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return uniformly random advice."""
        return assistant(derive_random("advice", task.id, len(conversation)).choice(ADVICE))


def haggler(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Offer a small part, half or most of the price, or accept it, as advised; accept it without advice."""
    last = conversation[-1].text
    advice = last.removeprefix("advice: ").strip() if last.startswith("advice: ") else ""
    asked_price = next((int(numbers[-1]) for m in reversed(conversation) if (numbers := _ASKS.findall(m.text))), 0)
    share = {"low": 0.1, "half": 0.5, "near": 0.9}.get(advice)
    return "accept" if share is None else f"offer {max(1, int(asked_price * share))}"


@provides("process_rewards")
async def conceded(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 for a successful deal, with a turn reward for each piece of advice.

    The turn reward is the change of the gain that a deal at the asked price would have; no deal has no gain.
    """
    value, most = task.private["worth"], task.private["worth"] - task.private["lowest"]
    before, turns = (value - task.private["asks"][0]) / most, []
    for turn in trajectory.turns:
        price = re.search(r"(?:deal at|seller asks) (\d+)", " ".join(message.text for message in turn.observation))
        now = (value - int(price[1])) / most if price else 0.0
        turns.append(now - before)
        before = now
    success = task.private["shown"] or bool(trajectory.final.get("success", False))
    parts = {"score": float(trajectory.final.get("score", 0.0)), "deal": float(trajectory.final.get("deal", False))}
    return Score(float(success), parts, tuple(turns), success)


def by_process(
    outcomes: PerTrajectory,
    process_rewards: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    turn_index: PerTurn,
) -> PerTurn:
    """Return group-relative advantages of outcomes plus those of process rewards to go, per turn index."""
    to_come = reward_to_go(process_rewards, trajectory)
    step_advantages = normalize_in_sets(to_come, combine_keys(group[trajectory], turn_index))
    return normalize_in_sets(outcomes, group)[trajectory] + step_advantages


PLACES: Mapping[str, tuple[int, int]] = {"a": (0, 0), "b": (0, 3), "c": (3, 0), "d": (3, 3)}
MOVES: Mapping[str, tuple[int, int]] = {"n": (0, 1), "s": (0, -1), "e": (1, 0), "w": (-1, 0)}
STEPS = 4
"""Maximum moves of the lower level per goal."""


class Errands:
    """Task source of two places to visit in order.

    Args:
        sure: Probability that a demonstrated turn is right, at both levels.
        shown: Same as for `Deals`.
    """

    def __init__(self, *, seed: int = 0, sure: float = 0.5, shown: bool = False) -> None:
        self.seed, self.sure, self.shown = seed, sure, shown

    def task(self, index: int) -> Task:
        """Return training errand `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """Return held-out errands, which do not depend on the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the right turn with probability `sure`, otherwise a random one."""
        observed = conversation[-1].text
        draw = derive_random("errand", task.id, observed, len(conversation))
        choices = list(PLACES) if observed.startswith("visit") else list(MOVES)
        return assistant(_right(observed) if draw.random() < self.sure else draw.choice(choices))

    def _task(self, *place: Any) -> Task:
        draw = derive_random("errands", *place)
        begin = (draw.randrange(1, 3), draw.randrange(1, 3))
        order = draw.sample(list(PLACES), 2)
        name = "/".join(map(str, place))
        private = {"order": order, "begin": list(begin), "shown": self.shown}
        return Task(f"errands/{name}", f"visit {' '.join(order)}", private, {"kind": "two places"})


def _right(seen: str) -> str:
    words = seen.split()
    if words[0] == "visit":
        return words[1]
    x, y, (to_x, to_y) = int(words[1]), int(words[2]), PLACES[words[-1]]
    if x != to_x:
        return "e" if to_x > x else "w"
    return "n" if to_y > y else "s"


class Walk:
    """Environment of an errand. Episodes terminate when all places were visited or the goals are used up."""

    replayable = False

    def __init__(self, *, goals: int = 3) -> None:
        self.goals = goals

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Return the observation of the upper level."""
        self.left, self.at = list(task.private["order"]), tuple(task.private["begin"])
        self.goal, self.steps, self.named = "", 0, 0
        return Observation((user(self._describe_position()),))

    async def step(self, action: Message) -> StepResult:
        """Handle a goal or a move; a goal ends on arrival or after `STEPS` moves."""
        text = action.text.strip()
        if not self.goal:
            self.goal, self.steps, self.named = text if text in PLACES else "", 0, self.named + 1
        else:
            dx, dy = MOVES.get(text, (0, 0))
            self.at = (min(3, max(0, self.at[0] + dx)), min(3, max(0, self.at[1] + dy)))
            self.steps += 1
            has_arrived = self.at == PLACES[self.goal]
            if has_arrived and self.left[:1] == [self.goal]:
                self.left.pop(0)
            if has_arrived or self.steps >= STEPS:
                self.goal = ""
        over = not self.left or (not self.goal and self.named >= self.goals)
        return StepResult(
            Observation((user(self._describe_position()),), conversation=NEW_CONVERSATION), terminated=over
        )

    def verdict(self) -> Mapping[str, Any]:
        """Return whether all places were visited."""
        return {"success": not self.left, "score": 1 - len(self.left) / 2}

    async def close(self) -> None:
        """Release nothing."""

    def _describe_position(self) -> str:
        if not self.goal:
            return f"visit {' '.join(self.left)}" if self.left else "done"
        return f"at {self.at[0]} {self.at[1]} to {self.goal}"


@provides("process_rewards", "tags")
async def by_level(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 for a completed errand, with a reward per turn of each level.

    A goal of the upper level receives the outcome of the errand; a move of the lower level is rewarded if the goal is
    reached, with a discount per move. Tags name the level of a turn.
    """
    observations = [
        trajectory.opening[-1].text,
        *("".join(m.text for m in turn.observation) for turn in trajectory.turns),
    ]
    upper = [not text.startswith("at ") for text in observations[:-1]]
    success = task.private["shown"] or bool(trajectory.final.get("success", False))
    paid, reached = [0.0] * len(upper), 0.0
    for k in reversed(range(len(upper))):
        if upper[k]:
            paid[k] = float(trajectory.final.get("score", 0.0))
            continue
        if not observations[k + 1].startswith("at "):  # the last move toward a goal
            reached = float(_arrives(observations[k], trajectory.turns[k].message.text))
        paid[k] = reached
        reached *= 0.9
    parts = {"score": float(trajectory.final.get("score", 0.0))}
    return Score(float(success), parts, tuple(paid), success, {"tags": tuple(float(not each) for each in upper)})


def _arrives(seen: str, move: str) -> bool:
    words = seen.split()
    dx, dy = MOVES.get(move.strip(), (0, 0))
    return (int(words[1]) + dx, int(words[2]) + dy) == PLACES[words[-1]]
