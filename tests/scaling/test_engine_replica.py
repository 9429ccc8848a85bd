"""A replica whose engine died draws for nobody before another took its place and was given the weights of now."""

import asyncio

import pytest
import torch

import tests_dying_engine
from tests_scaling import HereReplica
from whetstone.errors import InfrastructureError
from whetstone.inference import GenerateRequest, Sampling
from whetstone.recipe import Part
from whetstone.scaling.protocol import Gone
from whetstone.scaling.published import Published
from whetstone.trajectory import TokenSequence


def test_one_with_a_dead_engine_is_gone_until_it_has_weights_again(assembly):
    async def main():
        replica = HereReplica(assembly, "replica 0", Part(name="tests_dying_engine:dying"))
        begin = dict(assembly.policy.model.named_parameters())
        published = Published(dict, begin, version=0)
        await replica.load(published.whole(), in_flight="drain")
        changed = {name: torch.nn.Parameter(2 * tensor.detach()) for name, tensor in begin.items()}
        await replica.load(published.changed(changed, 1), in_flight="drain")

        async def draw():
            drawn = await replica.generate(
                GenerateRequest(TokenSequence([5, 6, 7]), Sampling(4, seed=1), "a", sampled_spans=())
            )
            return drawn.generation.tokens

        before = await draw()
        tests_dying_engine.MADE[-1].dying = True
        for said in ("its server is gone", "given no weights yet"):
            with pytest.raises(Gone, match=said):
                await draw()
        assert not (await replica.status()).ready
        await replica.load(published.whole(), in_flight="drain")
        status = await replica.status()
        assert (status.ready, status.version) == (True, 1)
        assert await draw() == before
        assert len(tests_dying_engine.MADE) == 2

        async def fails(*asked, **more):
            raise InfrastructureError("this question alone")

        tests_dying_engine.MADE[-1].score = fails
        with pytest.raises(InfrastructureError, match="this question alone"):
            await replica.score(TokenSequence([1, 2, 3]), start=1)
        assert (await replica.status()).ready

    asyncio.run(main())
