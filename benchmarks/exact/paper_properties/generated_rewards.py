"""Generated rewards: code is validated before it runs, and solves a sparse grid task sooner than the sparse reward."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paper_properties import exact
from paper_properties.episodes import EMPTY
from whetstone.analysis.exact import Figure
from whetstone.chat import Message, Text, user
from whetstone.environments.built_in.frozen_lake import MOVES, FrozenLake
from whetstone.rewards.generated.code_reward import CodeResult, build_trace
from whetstone.rewards.generated.generate_reward import rank_correlation, rejection_reason, write_reward
from whetstone.rewards.judges import Question, ScriptedJudge
from whetstone.trajectory import EndReason, Task, Trajectory, Turn

LAKE = Task("lake", "Walk to the goal.", {"lake": ["...", ".O.", "..."], "start": [0, 0], "goal": [2, 2]})
"""Nine squares with a hole in the middle; the goal is four moves away."""
MOVES_PER_EPISODE = 4
SQUARES = [(row, column) for row in range(3) for column in range(3)]
PLACES = """    def places(text):
        rows = text.split("\\n")
        return {mark: (r, c) for r, row in enumerate(rows) for c, mark in enumerate(row) if mark in "PG"}
    maps = [places(t["observations"][0]) for t in trace["turns"] if "P" in t["observations"][0]]
    if trace["turns"][-1]["observations"][0].startswith("You fell"):
        return 0.0
"""
DISTANCE = f"""def reward(trace):
{PLACES}    if trace["final"]["success"]:
        return 1.0
    at = maps[-1]
    return 0.2 * (4 - abs(at["P"][0] - at["G"][0]) - abs(at["P"][1] - at["G"][1]))
"""
ENDLESS = "def reward(trace):\n    while True:\n        pass\n"
PRIVATE = "def reward(trace):\n    return float(trace['private']['goal'][0])\n"
PASSIVE = "def reward(trace):\n    return 1.0 / len(trace['turns'])\n"
LENGTH = "def reward(trace):\n    return float(len(trace['turns'][0]['text']))\n"


@functools.cache
def walk_lake() -> tuple[Sequence[Trajectory], Tensor, Tensor]:
    """Play every sequence of moves in the built-in game.

    Returns:
        (episodes, [L, 4] square of each move, [L, 4] move); moves after the end are −1.
    """
    episodes: list[Trajectory] = []
    squares: list[list[int]] = []
    moves: list[list[int]] = []

    def extend(names: list[str]) -> None:
        game, turns, row = FrozenLake(max_steps=MOVES_PER_EPISODE), [], []
        game.begin(LAKE, 0)
        ended = False
        for name in names:
            row.append(SQUARES.index(game.player))
            seen = game.act(name)
            turns.append(Turn(EMPTY, EMPTY, Message("assistant", (Text(name),)), (user(seen.text),)))
            ended = seen.terminated or seen.truncated
        if not ended:
            for name in MOVES:
                extend([*names, name])
            return
        reason = EndReason.TERMINATED if seen.terminated else EndReason.TRUNCATED
        episodes.append(Trajectory(str(len(episodes)), LAKE.id, (), tuple(turns), reason, final=dict(game.verdict())))
        rest = [-1] * (MOVES_PER_EPISODE - len(names))
        squares.append([*row, *rest])
        moves.append([*(list(MOVES).index(name) for name in names), *rest])

    extend([])
    return episodes, torch.tensor(squares), torch.tensor(moves)


def run_code(code: str, trajectory: Trajectory) -> float:
    """Run reward code of this module on one episode, in this process."""
    names: dict[str, Any] = {}
    exec(code, names)
    return float(names["reward"](build_trace(trajectory, LAKE)))


def ascend(rewards: Tensor, wanted: Tensor, updates: int) -> list[float]:
    """Return the probability of the wanted episodes after each step of the exact policy gradient.

    The policy is a softmax over four moves per square; it starts uniform.

    Args:
        rewards: [L] reward of each episode.
        wanted: [L] whether an episode counts.
        updates: Number of steps, with a step size of 1.
    """
    _, squares, moves = walk_lake()
    played = (moves >= 0).double()
    logits = torch.zeros(len(SQUARES), len(MOVES), dtype=torch.float64, requires_grad=True)
    reached = []
    for _ in range(updates):
        logprobs = logits.log_softmax(-1)[squares.clamp(min=0), moves.clamp(min=0)]
        probabilities = (logprobs * played).sum(1).exp()
        reached.append(float(probabilities.detach() @ wanted.double()))
        (gradient,) = torch.autograd.grad(probabilities @ rewards, logits)
        logits = (logits + gradient).detach().requires_grad_()
    return reached


def _updates_until(reached: Sequence[float], success: float) -> int:
    return next(k for k, value in enumerate(reached) if value >= success)


@exact(
    "text2reward",
    "auto-mc-reward",
    of=(write_reward, rejection_reason, rank_correlation),
    note="the designer is scripted; training is the exact gradient of a policy over squares",
)
def written_reward_solves_a_sparse_grid_sooner() -> list[Figure]:
    """Code that never ends, reads private data or contradicts its reason is refused before it runs, code that does
    not separate success is revised, and the exact policy gradient with the accepted code reaches the goal in fewer
    updates than with the sparse reward."""
    episodes, _, _ = walk_lake()
    succeeded = [bool(each.final["success"]) for each in episodes]
    proposals, executed = [ENDLESS, PRIVATE, PASSIVE, LENGTH, DISTANCE], set()
    left = list(proposals)

    def answers(question: Question) -> Mapping[str, Any]:
        if "code" in question.shape["properties"]:
            return {"reason": "progress to the goal", "code": left.pop(0)}
        if "analysis" in question.shape["properties"]:
            return {"analysis": "the word is paid, not the way"}
        return {"reason": "short episodes are paid", "met": question.material["code"] != PASSIVE}

    async def run(code: str, trajectory: Trajectory, task: Task) -> CodeResult:
        executed.add(code)
        return await _run(code, trajectory, task)

    labeled = [(each, LAKE, ok) for each, ok in zip(episodes, succeeded, strict=True)]
    written = asyncio.run(write_reward(ScriptedJudge(answers=answers), "Walk to the goal.", labeled, rounds=5, run=run))
    goal = torch.tensor(succeeded)
    sparse = ascend(goal.double(), goal, 400)
    values = torch.tensor([run_code(written.code, each) for each in episodes], dtype=torch.float64)
    dense = ascend(goal.double() + values, goal, 400)
    return [
        Figure("proposals until one is accepted", "=", 5, written.rounds),
        Figure("refused proposals that were executed", "=", 0, len(executed & {ENDLESS, PRIVATE, PASSIVE})),
        Figure("executed proposals", "=", 2, len(executed)),
        Figure("rank correlation of the accepted code with success", "=", 1.0, written.correlation),
        Figure("success of the uniform policy", "=", 2 / 4**4, sparse[0]),
        Figure(
            "updates to 90 % success with the written reward, bound: sparse reward",
            "<",
            _updates_until(sparse, 0.9),
            _updates_until(dense, 0.9),
        ),
    ]


CORNER = f"""def reward(trace):
{PLACES}    at = maps[-1]["P"] if maps else (0, 0)
    return 0.0 * at[0] + 0.0 * at[1]
"""


@exact(
    "language-rewards-robotic-skill-synthesis",
    of=write_reward,
    note="parameters of a template are written by a scripted model; the trainer is the exact gradient",
)
def written_parameters_decide_the_behavior() -> list[Figure]:
    """A model that may change only the numbers of a template writes a parameter per direction from a description;
    the exact policy gradient of the written reward then reaches the described square, of two descriptions each."""
    episodes, _, _ = walk_lake()
    last = [_last_square(each) for each in episodes]
    figures = []
    for way, corner, parameters in (
        ("down", (2, 0), "1.0 * at[0] + -1.0 * at[1]"),
        ("right", (0, 2), "-1.0 * at[0] + 1.0 * at[1]"),
    ):
        wanted = torch.tensor([square == corner for square in last])
        labeled = [(each, LAKE, bool(ok)) for each, ok in zip(episodes, wanted, strict=True)]
        left = [CORNER.replace("at[0] +", "at[1] +"), CORNER.replace("0.0 * at[0] + 0.0 * at[1]", parameters)]

        def answers(question: Question, left: list[str] = left) -> Mapping[str, Any]:
            is_critic = "met" in question.shape["properties"]
            return {"reason": "", "met": True} if is_critic else {"reason": "", "code": left.pop(0)}

        judge = ScriptedJudge(answers=answers)
        written = asyncio.run(write_reward(judge, f"Go {way}.", labeled, template=CORNER, run=_run))
        values = torch.tensor([run_code(written.code, each) for each in episodes], dtype=torch.float64)
        reached = ascend(values, wanted, 200)
        figures += [
            Figure(f"proposals until the template is kept, {way}", "=", 2, written.rounds),
            Figure(f"probability of the square at the start, {way}", "<", 0.2, reached[0]),
            Figure(f"the same after 200 updates, {way}", ">", 0.9, reached[-1]),
        ]
    return figures


async def _run(code: str, trajectory: Trajectory, task: Task) -> CodeResult:
    return CodeResult(run_code(code, trajectory))


def _last_square(trajectory: Trajectory) -> tuple[int, int]:
    game = FrozenLake(max_steps=MOVES_PER_EPISODE)
    game.begin(LAKE, 0)
    for turn in trajectory.turns:
        game.act(turn.message.text)
    return game.player
