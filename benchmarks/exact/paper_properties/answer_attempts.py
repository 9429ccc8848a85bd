"""Success by answer attempt, with a fixed sentence and with feedback in words."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from paper_properties import exact
from paper_properties.episodes import make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.chat import Message, assistant
from whetstone.environments import ToolEnvironment
from whetstone.evaluation import Evaluation, summarize_episodes
from whetstone.rewards.judges import Question
from whetstone.rollout.environment_wrappers.try_again import TryAgain
from whetstone.trajectory import Group, Task

_VALUES = 7


def compare_with_sum(question: Question) -> Mapping[str, Any]:
    """Return whether the last action of the material is too low or too high for `x + 3 = N`; answers of a judge."""
    wanted = int(question.material["task"].rpartition(" ")[2]) - 3
    last = int(question.material["actions"].rpartition(" ")[2])
    return {"feedback": "Too low." if last < wanted else "Too high."}


def give_the_answer_away(question: Question) -> Mapping[str, Any]:
    """Return feedback that contains the answer, as a careless judge does."""
    return {"feedback": f"It is {int(question.material['task'].rpartition(' ')[2]) - 3}."}


def _play_all(wrapper: TryAgain) -> Evaluation:
    """Play all values of x with a policy that tries the middle of the remaining values and copies answers."""
    groups = []
    for value in range(_VALUES):
        task = Task(str(value), f"x + 3 = {value + 3}", private={"answer": value})
        groups.append(Group(task, (asyncio.run(_play(wrapper, task)),)))
    return summarize_episodes(groups, temperature=0.0)


async def _play(wrapper: TryAgain, task: Task) -> Any:
    async def judge(task: Task, actions: Sequence[Message]) -> float:
        return float(actions[-1].text == str(task.private["answer"]))

    environment = wrapper(ToolEnvironment(tools=[]), judge)
    await environment.reset(task, seed=0)
    candidates, texts, ended = list(range(_VALUES)), list[str](), False
    while not ended:
        guess = candidates[len(candidates) // 2]
        texts.append(str(guess))
        result = await environment.step(assistant(texts[-1]))
        ended, advice = result.terminated, {message.text for message in result.observation.messages}
        bounds = {"Too low.": (guess + 1, _VALUES), "Too high.": (0, guess)}
        bounds |= {f"It is {value}.": (value, value + 1) for value in range(_VALUES)}  # a copied answer
        low, high = next((bounds[text] for text in bounds if text in advice), (0, _VALUES))
        candidates = [value for value in candidates if low <= value < high and value != guess]
    await environment.close()
    return make_episode([make_turn(text) for text in texts], reward=float(texts[-1] == str(task.private["answer"])))


@exact("mint", of=(TryAgain, summarize_episodes), note="the policy is scripted, and the subset is one equation")
def feedback_in_words_raises_success_by_attempt() -> list[Figure]:
    """Seven equally frequent answers: with a fixed sentence after a wrong answer, attempt k solves k of 7; with advice
    on the direction 1, 3 and 7 of 7. Advice that contains the answer is replaced, so that a policy that would copy it
    wins nothing."""
    judged = {name: {"name": "scripted", "answers": f"paper_properties.answer_attempts:{name}"}
              for name in ("compare_with_sum", "give_the_answer_away")}  # fmt: skip
    plain = _play_all(TryAgain(attempts=3))
    advised = _play_all(TryAgain(attempts=3, feedback=judged["compare_with_sum"]))
    leaked = _play_all(TryAgain(attempts=3, feedback=judged["give_the_answer_away"]))
    return [
        *(Figure(f"solved within {k}, sentence", "=", k / 7, plain.success_by_attempt[str(k)]) for k in (1, 2, 3)),
        *(
            Figure(f"solved within {k}, advice", "=", solved / 7, advised.success_by_attempt[str(k)])
            for k, solved in ((1, 1), (2, 3), (3, 7))
        ),
        *(Figure(f"solved within {k}, leak", "=", k / 7, leaked.success_by_attempt[str(k)]) for k in (1, 2, 3)),
    ]
