"""Tests that agents write: ascent of a tabular policy over six suites of tests on the reward `written_tests`."""

from __future__ import annotations

import asyncio
import functools

import torch
from torch import Tensor

from paper_properties import exact
from paper_properties.episodes import make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.rewards.environment_state.code_mutations import create_mutants
from whetstone.rewards.environment_state.written_tests import WrittenTests
from whetstone.trajectory import Score, Task

_SOLUTION = 'def grade(points):\n    if points >= 50:\n        return "pass"\n    return "fail"'
_TASK = Task("t", "Write tests.", {"entry_point": "grade", "solution": _SOLUTION})
_SUITES = {
    "does not parse": "assert grade(50 ==",
    "wrong": 'assert grade(50) == "fail"',
    "empty": "def test_grade():\n    grade(50)\n    grade(0)",
    "one branch": 'assert grade(90) == "pass"',
    "both sides": "".join(f'assert grade({n}) == "{text}"\n' for n, text in ((50, "pass"), (51, "pass"), (0, "fail"))),
    "with findings": (
        "def test_grade():\n"
        "    print('testing')\n"
        "    for n in (0, 50, 51):\n"
        '        if n >= 50:\n            assert grade(n) == "pass"\n'
        '        else:\n            assert grade(n) == "fail"'
    ),
}


@functools.cache
def _score_suites(smell_penalty: float, coverage_weight: float = 0.0) -> list[Score]:
    reward = WrittenTests(smell_penalty=smell_penalty, coverage_weight=coverage_weight, sandbox="unsafe")

    async def score_all() -> list[Score]:
        return [await reward(make_episode([make_turn(f"```python\n{code}\n```")]), _TASK) for code in _SUITES.values()]

    return asyncio.run(score_all())


def _train(scores: list[Score]) -> Tensor:
    """Return [6] probabilities of the suites after exact gradient ascent on the expected reward from uniform."""
    values = torch.tensor([score.value for score in scores], dtype=torch.float64)
    logits = torch.zeros_like(values)
    for _ in range(4000):
        p = logits.softmax(0)
        logits = logits + 5.0 * p * (values - (p * values).sum())
    return logits.softmax(0)


def _expect(p: Tensor, scores: list[Score], part: str) -> float:
    return float(sum(weight * score.parts[part] for weight, score in zip(p.tolist(), scores, strict=True)))


@exact("tdd-without-tears", of=(WrittenTests, create_mutants), note="six suites and a tabular policy, without a model")
def reward_of_tests_raises_the_fraction_of_valid_tests() -> list[Figure]:
    """Six suites for a function with four mutants: one does not parse, one is wrong, one asserts nothing, three hold.
    Exact ascent from uniform on `written_tests` raises valid tests from a half to all of them, and with them the
    statements that run and the mutants that are detected; suites without an assertion that holds earn 0. With
    `coverage_weight` 1 the statements are the reward, and both rise as well."""
    scores, covering = _score_suites(0.0), _score_suites(0.0, 1.0)
    uniform, trained = torch.full((6,), 1 / 6, dtype=torch.float64), _train(scores)
    return [
        Figure("reward of the suites that are invalid or empty, sum", "=", 0, sum(each.value for each in scores[:3])),
        Figure("reward of one branch: 1 of 4 mutants", "=", 0.25, scores[3].value),
        Figure("valid tests, untrained", "=", 0.5, _expect(uniform, scores, "valid")),
        Figure("valid tests, trained", ">", 0.99, _expect(trained, scores, "valid")),
        Figure(
            "statements that run, untrained: (2/3 + 1 + 1) / 6", "=", 0.444444, _expect(uniform, scores, "coverage")
        ),
        Figure("statements that run, trained", ">", 0.99, _expect(trained, scores, "coverage")),
        Figure("mutants detected, trained", ">", 0.99, _expect(trained, scores, "detected")),
        Figure("valid tests, trained on statements", ">", 0.99, _expect(_train(covering), covering, "valid")),
        Figure(
            "statements that run, trained on statements", ">", 0.99, _expect(_train(covering), covering, "coverage")
        ),
    ]


@exact(
    "reinforcement-learning-automatic-feedback-high-quality",
    of=WrittenTests,
    note="six suites and a tabular policy, without a model",
)
def static_metrics_lower_findings_at_equal_detection() -> list[Figure]:
    """Two of six suites detect all mutants, one of them with a branch and a print. Without a penalty the trained policy
    keeps both equally; with `smell_penalty` its tests have no findings, and parse and detect as often."""
    plain, penalized = _score_suites(0.0), _score_suites(0.2)
    without, with_penalty = _train(plain), _train(penalized)
    return [
        Figure("tests with findings, without penalty", ">", 0.49, _expect(without, plain, "smells")),
        Figure("tests with findings, with penalty", "<", 0.01, _expect(with_penalty, penalized, "smells")),
        Figure("tests that parse, with penalty", ">", 0.99, _expect(with_penalty, penalized, "parsed")),
        Figure("mutants detected, with penalty", ">", 0.99, _expect(with_penalty, penalized, "detected")),
    ]
