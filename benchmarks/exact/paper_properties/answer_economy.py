"""Calibration of stated confidence, few turns, and evidence: ascent of a tabular policy on the expected reward."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paper_properties import exact
from paper_properties.episodes import EMPTY, make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.chat import Message, Text, tool_result
from whetstone.evaluation import compute_calibration, summarize_episodes
from whetstone.rewards import Reward
from whetstone.rewards.answers.confidence import calibrated
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.fewest_turns import fewest_turns
from whetstone.rewards.judge_rewards.evidence import Evidence
from whetstone.rewards.judges import Question, ScriptedJudge
from whetstone.trajectory import Author, Group, Task, Tokens, Trajectory, Turn

_TASK = Task("t", "?", private={"answer": "7"})


def _score(reward: Callable[..., Any], episode: Trajectory) -> float:
    return float(asyncio.run(reward(episode, _TASK)).value)


def _ascend(rewards: Tensor, steps: int = 2000) -> Tensor:
    """Return the probabilities of a softmax policy after exact gradient ascent on its expected reward from uniform."""
    logits = torch.zeros_like(rewards)
    for _ in range(steps):
        p = logits.softmax(0)
        logits = logits + 5.0 * p * (rewards - (p * rewards).sum())
    return logits.softmax(0)


def _measure_calibration(reward: Reward) -> tuple[float, float]:
    """Return (ECE, accuracy) of policies trained with a reward on tasks of three difficulties."""
    confidence = [k / 10 for k in range(11)]
    stated: list[float] = []
    right: list[bool] = []
    for solved_of_ten in (2, 5, 9):  # success does not depend on the confidence
        values = []
        for q in confidence:
            good, bad = (make_episode([make_turn(f"{answer}\nconfidence: {q}")]) for answer in ("7", "3"))
            expected = solved_of_ten * _score(reward, good) + (10 - solved_of_ten) * _score(reward, bad)
            values.append(expected / 10)
        policy = _ascend(torch.tensor(values, dtype=torch.float64))
        for q, p in zip(confidence, policy.tolist(), strict=True):
            count = round(100 * p)
            stated += [q] * 10 * count
            right += ([True] * solved_of_ten + [False] * (10 - solved_of_ten)) * count
    calibration = compute_calibration(stated, right)
    assert calibration is not None
    return calibration.expected_error, sum(right) / len(right)


async def _last_line(trajectory: Trajectory, task: Task) -> Any:
    """Score the first line of the answer, without the stated confidence."""
    text = trajectory.final_text.split("\n")[0]
    last = replace(trajectory.turns[-1], message=Message("assistant", (Text(text),)))
    return await exact_match(replace(trajectory, turns=(*trajectory.turns[:-1], last)), task)


@exact("confidence-dichotomy", of=(calibrated, compute_calibration), note="a tabular policy without tools")
def calibration_reward_lowers_ece_at_equal_accuracy() -> list[Figure]:
    """Three kinds of tasks with success 2, 5 and 9 of 10; exact gradient ascent from uniform confidence: with the
    calibration reward ECE falls to 0 in both forms; with the outcome as reward it stays; accuracy is equal by
    construction, since success does not depend on the confidence."""

    def with_form(form: Any) -> Reward:
        async def reward(trajectory: Trajectory, task: Task) -> Any:
            return await calibrated(trajectory, task, outcome=_last_line, form=form)

        return reward

    plain, plain_accuracy = _measure_calibration(_last_line)
    figures = [Figure("ECE with the outcome as reward", ">", 0.2, plain)]
    for form in ("separated", "brier"):
        error, accuracy = _measure_calibration(with_form(form))
        figures += [
            Figure(f"ECE, {form}", "<", 0.01, error),
            Figure(f"accuracy less that of the outcome, {form}", "=", 0.0, accuracy - plain_accuracy),
        ]
    return figures


def _make_units(units: Sequence[Sequence[int]], *, right: bool = True) -> Trajectory:
    """Build an episode of turns; each turn has units of thought with this number of tokens, joined by `wait`."""
    turns: list[Turn] = []
    for number, tokens in enumerate(units):
        answer = "7" if right and number + 1 == len(units) else "3"
        text = "<think>" + " wait ".join("x" * count for count in tokens) + f"</think>{answer}"
        action = Tokens.from_ids(tuple(range(sum(tokens))), Author.POLICY)
        turns.append(Turn(EMPTY, action, Message("assistant", (Text(text),))))
    return make_episode(turns)


async def _answer_only(trajectory: Trajectory, task: Task) -> Any:
    text = trajectory.final_text.rpartition("</think>")[2]
    last = replace(trajectory.turns[-1], message=Message("assistant", (Text(text),)))
    return await exact_match(replace(trajectory, turns=(*trajectory.turns[:-1], last)), task)


@exact("mind", of=(fewest_turns, summarize_episodes), note="four structures of the same thoughts, without a model")
def few_turns_lower_tokens_to_the_first_answer() -> list[Figure]:
    """Four structures of right episodes: four units in one turn, one unit in each of four turns, the same in two,
    and two units in each of two turns. Exact ascent on `fewest_turns` with `brevity` 0.2 ends at two turns of one
    unit (with 0, two and four turns tie): tokens to the first answer fall from 20 to 10, which is a wrong answer
    here, and those to the first right answer from 35 to 20, at equal accuracy; the outcome changes nothing."""
    structures = ([[10, 10, 10, 10]], [[10], [10], [10], [10]], [[10], [10]], [[10, 10], [10, 10]])
    episodes = [_make_units(structure) for structure in structures]

    async def economic(trajectory: Trajectory, task: Task) -> Any:
        return await fewest_turns(trajectory, task, outcome=_answer_only, brevity=0.2)

    figures = []
    totals = [sum(map(sum, structure)) for structure in structures]  # only the last turn is right
    for name, reward, tokens, right_tokens in (
        ("outcome", _answer_only, 20.0, 35.0),
        ("fewest_turns", economic, 10.0, 20.0),
    ):
        policy = _ascend(torch.tensor([_score(reward, each) for each in episodes], dtype=torch.float64), 20000)
        counts = [round(100 * p) for p in policy.tolist()]
        until_right = sum(map(operator.mul, counts, totals)) / sum(counts)
        played = []
        for episode, count in zip(episodes, counts, strict=True):
            score = asyncio.run(reward(episode, _TASK))
            played += [replace(episode, score=score)] * count
        result = summarize_episodes([Group(_TASK, tuple(played))], temperature=1.0)
        figures += [
            Figure(f"tokens to the first answer, {name}", "=", tokens, result.first_answer_tokens),
            Figure(f"tokens to the first right answer, {name}", "=", right_tokens, until_right),
            Figure(f"accuracy, {name}", "=", 1.0, result.success),
        ]
    wrong = _score(economic, _make_units([[10]], right=False))
    return [*figures, Figure("reward of one quick wrong turn", "=", 0.0, wrong)]


def _read_state(question: Question) -> Mapping[str, Any]:
    """Decide from tool output only: the task is done if the last state line ends with `saved`."""
    lines = [line for line in question.material["evidence"].split("\n") if line.startswith("tool: state")]
    return {"reason": "", "relevant": bool(lines), "complete": bool(lines) and lines[-1].endswith("saved")}


@exact("smartsnap", of=Evidence, note="the judge is scripted and reads the state lines of tool output")
def evidence_agrees_with_the_state_at_lower_cost() -> list[Figure]:
    """Half of 40 episodes of ten steps with known states are done. A judge that reads one named step agrees with the
    state in all of them, as does a judge of all steps, and reads a tenth of the text; a claim in the agent's own words,
    or a step that shows nothing, proves nothing. A step whose state changed later is accepted: only a judge of all
    steps detects it."""
    read = {"one step": 0, "all steps": 0}
    agreed = {"one step": 0, "all steps": 0}

    def judge(name: str, episode: Trajectory, evidence: str) -> bool:
        def answers(question: Question) -> Mapping[str, Any]:
            read[name] += len(question.material["evidence"])
            return _read_state(question)

        reward = Evidence(judge=ScriptedJudge(answers=answers), max_steps=10)
        last = make_turn(f"Done: state saved. evidence: {evidence}")
        return bool(asyncio.run(reward(replace(episode, turns=(*episode.turns, last)), _TASK)).success)

    read["forged"] = read["empty step"] = 0
    forged = empty = 0
    read["stale"] = read["stale, all steps"] = 0
    for number in range(40):
        is_saved = number % 2 == 0
        texts = [f"step {number}-{k} opens a page with some text" for k in range(9)]
        texts.append("state: saved" if is_saved else "state: draft")
        turns = [replace(make_turn("", [("act", "{}")]), observation=(tool_result(text),)) for text in texts]
        episode = make_episode(turns)
        agreed["one step"] += judge("one step", episode, "10") == is_saved
        agreed["all steps"] += judge("all steps", episode, ", ".join(map(str, range(1, 11)))) == is_saved
        forged += not is_saved and judge("forged", episode, "10, 11")
        empty += judge("empty step", episode, "3")
    lost = make_episode(
        [
            replace(make_turn("", [("act", "{}")]), observation=(tool_result(f"state: {state}"),))
            for state in ("saved", "draft")
        ]
    )
    return [
        Figure("agreement with the state, one step of 40", "=", 40, agreed["one step"]),
        Figure("agreement with the state, all steps", "=", 40, agreed["all steps"]),
        Figure("text read, one step over all", "<", 0.12, read["one step"] / read["all steps"]),
        Figure("unfinished tasks proved by own words", "=", 0, forged),
        Figure("tasks proved by a step that shows nothing", "=", 0, empty),
        Figure("a saved state that was lost later, by the named step", "=", 1, judge("stale", lost, "1")),
        Figure("the same by all steps", "=", 0, judge("stale, all steps", lost, "1, 2")),
    ]
