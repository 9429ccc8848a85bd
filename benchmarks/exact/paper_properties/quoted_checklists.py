"""Checklist items that must quote the record of a step."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paper_properties import exact
from paper_properties.episodes import make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.chat import tool_result
from whetstone.rewards.judge_rewards.checklist import Checklist
from whetstone.rewards.judges import Question, ScriptedJudge
from whetstone.trajectory import Score, Task, Turn

_WANTED = ("order 17 found", "refund of 40 paid")


def read_step(question: Question) -> Mapping[str, Any]:
    """Find the words of an item in the step, and quote its line."""
    wanted = question.ask.split('"')[1]
    line = next((line for line in question.material["step"].split("\n") if wanted in line), "")
    quote = line.partition(": ")[2] or line
    answer = {"focus_present": True, "reason": "", "failure_example_applies": False, "met": bool(line)}
    return answer | ({"quote": quote} if "quote" in question.shape["properties"] else {})


def agree_always(question: Question) -> Mapping[str, Any]:
    """Call every item met, with the words of the item as an invented quote."""
    answer = {**read_step(question), "met": True}
    return answer | ({"quote": question.ask.split('"')[1]} if "quote" in answer else {})


def agree_with_any_line(question: Question) -> Mapping[str, Any]:
    """Call every item met, with the last line of the step as the quote."""
    quote = question.material["step"].split("\n")[-1].partition(": ")[2]
    return {**read_step(question), "met": True, "quote": quote}


def _score(answers: Any, steps: list[Turn], *, quotes: bool = True) -> Score:
    items = [
        {"id": words, "question": f'Does a tool report "{words}"?', "weight": 0.5, "focus_on": "tool results"}
        for words in _WANTED
    ]
    reward = Checklist(judge=ScriptedJudge(answers=answers), quotes=quotes)
    return asyncio.run(reward(make_episode(steps), Task("t", "Refund order 17.", private={"checklists": [[items]]})))


def _call(result: str) -> Turn:
    return replace(make_turn("", [("desk", "{}")]), observation=(tool_result(result),))


@exact("cm2", of=Checklist, note="the judges are scripted")
def items_are_met_only_with_a_quote_of_the_record() -> list[Figure]:
    """Over all 27 episodes of three steps that find the order, pay the refund or do neither, the rewards of steps are
    the weights of the items, each granted once, at the first step whose tool result shows it. A judge that agrees with
    everything and invents its quotes changes no reward, and claims in the agent's own words earn nothing. A judge that
    quotes a line of the record which does not show the item is not detected."""
    results = (*_WANTED, "nothing to see here")
    wrong = lenient = 0
    for episode in itertools.product(results, repeat=3):
        steps = [_call(result) for result in episode]
        expected = tuple(0.5 * (text in _WANTED and text not in episode[:k]) for k, text in enumerate(episode))
        wrong += _score(read_step, steps).turns != expected
        lenient += _score(agree_always, steps).turns != expected
    claim = [make_turn(f"{_WANTED[0]}, {_WANTED[1]}.")]
    idle = _call(results[2])
    with_call = [replace(idle, message=replace(idle.message, content=claim[0].message.content))]
    return [
        Figure("episodes of 27 with other rewards", "=", 0, wrong),
        Figure("the same with a judge that agrees with everything and invents quotes", "=", 0, lenient),
        Figure("its reward without quotes for three idle steps", "=", 1.0,
               _score(agree_always, [idle] * 3, quotes=False).parts["checklist"]),
        Figure("its reward if it quotes any line of them", "=", 1.0,
               _score(agree_with_any_line, [idle] * 3).parts["checklist"]),
        Figure("claims in the agent's own words", "=", 0.0, _score(read_step, claim).parts["checklist"]),
        Figure("the same next to a call", "=", 0.0, _score(agree_always, with_call).parts["checklist"]),
        Figure("quote of a single word", "=", 0.0,
               _score(lambda q: {**read_step(q), "quote": "order"}, [_call(_WANTED[0])]).parts["checklist"]),
    ]  # fmt: skip
