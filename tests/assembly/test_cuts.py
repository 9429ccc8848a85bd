"""`rollout.top_k`, `top_p`, `min_p` and `stop` reach the sampler, and the learner compares like with like."""

import asyncio

import pytest
import torch

from tests_small import SMALL
from whetstone.assembly import assemble
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.recipe import load_recipe
from whetstone.rollout import plans_of


def played(*overrides, count=4):
    """(parts, trajectories) of a small demo."""
    assembly = assemble(load_recipe("demo", [*SMALL, "ablations=null", *overrides]))

    async def sampled():
        engine = assembly.engine()
        try:
            collector = assembly.collector(assembly.policy_actor(engine, temperature=1.0))
            plans = plans_of((assembly.source.task(k) for k in range(count)), seed=0)
            return await asyncio.gather(*map(collector.sample, plans))
        finally:
            await engine.close()

    return assembly, asyncio.run(sampled())


@pytest.mark.parametrize("cut", ["top_k=3", "top_p=0.3", "min_p=0.6"])
def test_what_a_cut_draws_is_on_record_as_the_learner_computes_it(cut):
    assembly, trajectories = played(f"rollout.{cut}")
    segments = [segment for trajectory in trajectories for segment in trajectory.segments()]
    trainer = ModelTrainer(assembly.policy, assembly.resolved.recipe.reinforcement)
    found = torch.cat(trainer.logprobs(segments))
    drawn = [
        logprob
        for segment in segments
        for place, logprob in enumerate(segment.tokens.logprobs)
        if place and segment.action_mask[place]
    ]
    assert len(drawn) > 10
    assert torch.allclose(found, torch.tensor(drawn), atol=1e-4)


def test_only_the_likeliest_is_drawn_of_one():
    _, (first, *_) = played("rollout.top_k=1")
    _, (again, *_) = played("rollout.top_k=1", "seed=0")
    drawn = [turn.action.ids for turn in first.turns]
    assert drawn == [turn.action.ids for turn in again.turns]


def test_a_stop_ends_the_turn_behind_it():
    _, trajectories = played("rollout.max_new_tokens=40")
    texts = [turn.message.text for t in trajectories for turn in t.turns]
    stop = next(letter for text in texts for letter in text[:-3] if letter.isalnum())
    assembly, stopped = played("rollout.max_new_tokens=40", f'rollout.stop_strings=["{stop}"]')
    for trajectory in stopped:
        for turn in trajectory.turns:
            assert stop not in assembly.policy.tokenizer.decode(turn.action.ids[:-1])
