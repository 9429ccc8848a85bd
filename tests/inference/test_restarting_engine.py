"""`RestartingEngine` replaces a dead engine, and stops after repeated deaths."""

import asyncio

import pytest

from whetstone.errors import InfrastructureError
from whetstone.inference import EngineStatistics, GenerateRequest, Generation, LocalEngine, RestartingEngine, Sampling
from whetstone.policies import build_tiny
from whetstone.trajectory import TokenSequence

ANSWER = Generation((1,), (-0.5,), (0.1,), (3,), "stop")


class DyingEngine:
    """An engine that answers N requests, then dies; the last request fails."""

    def __init__(self, version, lives):
        self.version, self.lives, self.alive = version, lives, True
        self.statistics = EngineStatistics(requests=0, rows=4)

    async def generate(self, request):
        if self.lives == 0:
            self.alive = False
            raise InfrastructureError("the engine failed")
        self.lives -= 1
        self.statistics = EngineStatistics(requests=self.statistics.requests + 1, rows=4)
        return ANSWER

    async def load_weights(self, weights, version, *, in_flight="drain"):
        self.version = version

    async def close(self):
        self.alive = False


def play_engine(lives, requests):
    engines, left, messages = [], list(lives), []

    def make(version):
        engines.append(DyingEngine(version, left.pop(0)))
        return engines[-1]

    async def main():
        engine = RestartingEngine(make, heard=messages.append, max_restarts=3, back_off_seconds=0.001)
        await engine.load_weights({}, 7)
        answers = []
        for _ in range(requests):
            try:
                answers.append(await engine.generate(GenerateRequest(TokenSequence([1]), Sampling(4), "e")))
            except InfrastructureError as error:
                answers.append(str(error))
        return engine, answers

    return *asyncio.run(main()), engines, messages


def test_dead_engine_is_replaced_under_the_same_version():
    engine, answers, engines, messages = play_engine([2, 5], 6)
    assert answers == [ANSWER, ANSWER, "the engine failed", ANSWER, ANSWER, ANSWER]
    assert [one.version for one in engines] == [7, 7]
    assert (engine.version, engine.restarts, engine.statistics.requests, engine.statistics.rows) == (7, 1, 5, 4)
    assert messages == ["the engine died; it is restarted in 0.001 s"]


def test_engine_that_dies_repeatedly_is_given_up():
    engine, answers, engines, _ = play_engine([1, 0, 0, 0], 7)
    assert answers[0] is ANSWER
    assert answers[1:5] == ["the engine failed"] * 4
    assert answers[5:] == ["the engine died 3 times in a row; it is not restarted"] * 2
    assert len(engines) == 4
    assert not engine.alive


def test_answer_between_deaths_resets_the_count():
    engine, answers, *_ = play_engine([1] * 8, 14)
    assert engine.restarts == 6
    assert answers.count(ANSWER) == 7


def test_local_engine_with_an_internal_error_is_replaced_and_samples_the_same_tokens():
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64, seed=3)
    engines = []

    def make(version):
        engines.append(LocalEngine(policy.model, context_length=64, rows=4, version=version))
        return engines[-1]

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        engine = RestartingEngine(make, back_off_seconds=0.001)
        before = await engine.generate(GenerateRequest(TokenSequence([5, 6, 7]), Sampling(6, seed=1), "a"))
        broken = engines[0]
        broken._admit = lambda: 1 / 0  # an internal error, not an error of a request
        with pytest.raises(InfrastructureError, match="ZeroDivisionError"):
            await engine.generate(GenerateRequest(TokenSequence([5, 6, 7]), Sampling(6, seed=1), "b"))
        after = await engine.generate(GenerateRequest(TokenSequence([5, 6, 7]), Sampling(6, seed=1), "c"))
        await engine.close()
        with pytest.raises(InfrastructureError, match="the engine is closed"):
            await engine.generate(GenerateRequest(TokenSequence([5]), Sampling(1), "d"))
        return before, after

    before, after = asyncio.run(main())
    assert before.tokens == after.tokens
    assert before.logprobs == after.logprobs
    assert len(engines) == 2
