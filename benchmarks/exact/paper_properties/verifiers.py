"""Verifiers with tools: scores without a reference answer, and algebra that string match does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import product
from typing import Any

from paper_properties import exact
from paper_properties.episodes import make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.judge_rewards.rule_then_judge import Verified
from whetstone.rewards.judges import Question, ScriptedJudge
from whetstone.trajectory import Score, Task


def _verify(question: Question) -> Mapping[str, Any]:
    """Answer as a verifier that cannot calculate: the mean score, unless a tool has decided."""
    shape, material = question.shape["properties"], question.material
    observed = material.get("what your tools said", "")
    step = {"thought": "", "tool": "none", "input": "", "verdict": "correct", "score": 5}
    if not observed and "calculator" in shape["tool"]["enum"]:
        step |= {"tool": "calculator", "input": material["question"]}
    elif not observed and "algebra" in shape["tool"]["enum"]:
        step |= {"tool": "algebra", "input": f"{material['answer']} == {material['reference']}"}
    elif observed:
        right = observed.endswith(f"= {material['answer']}") or observed.endswith("= equal")
        step |= {"verdict": "correct" if right else "incorrect", "score": 10 * right}
    return {name: step[name] for name in question.shape["required"]}


def _judge(reward: Any, task: Task, answer: str) -> Score:
    score: Score = asyncio.run(reward(make_episode([make_turn(answer)]), task))
    return score


@exact("themis", of=Verified, note="a scripted verifier that cannot multiply; none is trained")
def verifier_ranks_products_with_a_calculator_only() -> list[Figure]:
    """Over 64 products, each with its value and one that is too large by 1, a verifier without a reference answer ranks
    the right one first by its score if it may call the calculator, and half of them with `tools: []`, ties half."""
    judge = ScriptedJudge(answers=_verify)
    ranks = {}
    for tools in (("calculator", "convert"), ()):
        reward = Verified(judge=judge, reference=False, tools=tools)
        total = 0.0
        for a, b in product(range(2, 10), repeat=2):
            right, wrong = (_judge(reward, Task("t", f"{a}*{b}"), f"{a * b + off}").value for off in (0, 1))
            total += (right > wrong) + 0.5 * (right == wrong)
        ranks[tools] = total / 64
    return [
        Figure("pairs ranked with the calculator", "=", 1, ranks["calculator", "convert"]),
        Figure("pairs ranked without tools", "=", 0.5, ranks[()]),
    ]


@exact("cosineverifier", of=Verified, note="a scripted verifier that compares by its tool; none is trained, no run")
def algebra_accepts_what_string_match_rejects() -> list[Figure]:
    """All 9 equal pairs of expanded and factored forms (x + a)(x + b) are accepted by a verifier with algebra, and none
    by string match or by rules, and the 9 pairs with another constant are rejected."""
    reward = Verified(judge=ScriptedJudge(answers=_verify), tools=("algebra",), sandbox="unsafe")
    accepted = matched = ruled = wrong = 0
    for a, b in product(range(1, 4), repeat=2):
        task = Task("t", "Expand.", {"answer": f"(x+{a})*(x+{b})"})
        expanded = f"x^2 + {a + b}*x + {a * b}"
        accepted += bool(_judge(reward, task, expanded).success)
        matched += bool(_judge(exact_match, task, expanded).success)
        ruled += bool(_judge(Verified(), task, expanded).success)
        wrong += bool(_judge(reward, task, f"x^2 + {a + b}*x + {a * b + 1}").success)
    return [
        Figure("equal pairs accepted by the verifier with algebra, of 9", "=", 9, accepted),
        Figure("by string match", "=", 0, matched),
        Figure("by rules without a verifier", "=", 0, ruled),
        Figure("unequal pairs accepted by the verifier with algebra", "=", 0, wrong),
    ]
