"""`rollout.top_k`, `top_p`, `min_p` and `stop` apply to the sampler, and the learner computes log-probs accordingly."""

import asyncio

import pytest
import torch

from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.recipe import load_recipe
from whetstone.rollout import make_plans


def played(*overrides, count=4):
    """Play a small demo; return its components and trajectories."""
    assembly = assemble(load_recipe("demo", [*SMALL, "ablations=null", *overrides]))

    async def sampled():
        engine = assembly.build_engine()
        try:
            collector = assembly.build_collector(assembly.policy_actor(engine, temperature=1.0))
            plans = make_plans((assembly.source.task(k) for k in range(count)), seed=0)
            return await asyncio.gather(*map(collector.sample, plans))
        finally:
            await engine.close()

    return assembly, asyncio.run(sampled())


@pytest.mark.parametrize("cut", ["top_k=3", "top_p=0.3", "min_p=0.6"])
def test_recorded_log_probs_of_truncated_sampling_equal_those_of_the_learner(cut):
    assembly, trajectories = played(f"rollout.{cut}")
    segments = [segment for trajectory in trajectories for segment in trajectory.segments()]
    trainer = ModelTrainer(assembly.policy, assembly.resolved.recipe.reinforcement)
    logprobs = torch.cat(trainer.logprobs(segments))
    drawn = [
        logprob
        for segment in segments
        for place, logprob in enumerate(segment.tokens.logprobs)
        if place and segment.action_mask[place]
    ]
    assert len(drawn) > 10
    assert torch.allclose(logprobs, torch.tensor(drawn), atol=1e-4)


def test_top_k_of_one_samples_the_most_likely_token():
    _, (first, *_) = played("rollout.top_k=1")
    _, (other, *_) = played("rollout.top_k=1", "seed=0")
    drawn = [turn.action.ids for turn in first.turns]
    assert drawn == [turn.action.ids for turn in other.turns]


def test_turn_ends_after_a_stop_string():
    _, trajectories = played("rollout.max_new_tokens=40")
    texts = [turn.message.text for t in trajectories for turn in t.turns]
    stop = next(letter for text in texts for letter in text[:-3] if letter.isalnum())
    assembly, stopped = played("rollout.max_new_tokens=40", f'rollout.stop_strings=["{stop}"]')
    for trajectory in stopped:
        for turn in trajectory.turns:
            assert stop not in assembly.policy.tokenizer.decode(turn.action.ids[:-1])
