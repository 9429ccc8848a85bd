"""A replica with a dead engine serves no request until a new engine has received the current weights."""

import asyncio

import pytest
import torch

from support import dying_engine
from support.scaling import HereReplica
from whetstone.errors import InfrastructureError
from whetstone.inference import GenerateRequest, Sampling
from whetstone.recipe import Part
from whetstone.scaling.protocol import ActorUnavailable
from whetstone.scaling.weight_broadcast import SharedWeights
from whetstone.trajectory import TokenSequence


def test_replica_with_a_dead_engine_is_unavailable_until_it_has_weights(assembly):
    async def main():
        replica = HereReplica(assembly, "replica 0", Part(name="support.dying_engine:dying"))
        begin = dict(assembly.policy.model.named_parameters())
        published = SharedWeights(dict, begin, version=0)
        await replica.load(published.collect_all(), in_flight="drain")
        changed = {name: torch.nn.Parameter(2 * tensor.detach()) for name, tensor in begin.items()}
        await replica.load(published.collect_changes(changed, 1), in_flight="drain")

        async def generate():
            result = await replica.generate(
                GenerateRequest(TokenSequence([5, 6, 7]), Sampling(4, seed=1), "a", sampled_spans=())
            )
            return result.generation.tokens

        before = await generate()
        dying_engine.MADE[-1].dying = True
        for message in ("its server is gone", "received no weights yet"):
            with pytest.raises(ActorUnavailable, match=message):
                await generate()
        assert not (await replica.status()).ready
        await replica.load(published.collect_all(), in_flight="drain")
        status = await replica.status()
        assert (status.ready, status.version) == (True, 1)
        assert await generate() == before
        assert len(dying_engine.MADE) == 2

        async def fails(*arguments, **more):
            raise InfrastructureError("this request only")

        dying_engine.MADE[-1].score = fails
        with pytest.raises(InfrastructureError, match="this request only"):
            await replica.score(TokenSequence([1, 2, 3]), start=1)
        assert (await replica.status()).ready

    asyncio.run(main())
