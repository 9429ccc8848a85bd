"""Replicas and workers in this process that can be killed: a cluster without Ray."""

import asyncio
from contextlib import contextmanager

from whetstone.rollout import Collector
from whetstone.scaling.distributed_collector import DistributedCollector
from whetstone.scaling.engine_replica import EngineReplica, ReplicaSpec
from whetstone.scaling.environment_worker import EnvironmentWorker
from whetstone.scaling.protocol import ActorUnavailable
from whetstone.scaling.replicated_engine import ReplicatedEngine
from whetstone.scaling.weight_broadcast import SharedWeights
from whetstone.scaling.weight_sync_engine import WeightSyncEngine
from whetstone.scaling.worker_pool import WorkerPool


class Killable:
    """An object built by `make`, whose calls in flight end with `ActorUnavailable` when it is killed."""

    def __init__(self, make):
        self.make, self.died = make, asyncio.Event()
        self.thing = make()

    def kill(self, *, back=True):
        """Kill the object; another one replaces it unless `back` is False."""
        self.died.set()
        self.died = asyncio.Event()
        self.thing = self.make() if back else None

    @contextmanager
    def alive(self):
        if self.thing is None:
            raise ActorUnavailable("it is dead")
        yield self.thing, self.died

    async def ask(self, call):
        with self.alive() as (thing, died):
            running, dies = asyncio.ensure_future(call(thing)), asyncio.ensure_future(died.wait())
            try:
                await asyncio.wait([running, dies], return_when=asyncio.FIRST_COMPLETED)
                if dies.done():
                    raise ActorUnavailable("it died")
                return running.result()
            finally:
                running.cancel()
                dies.cancel()


class HereReplica(Killable):
    """A replica with the engine of the recipe, or another one."""

    def __init__(self, assembly, name, engine=None):
        engine = engine or assembly.resolved.recipe.engine
        making = ReplicaSpec(assembly.resolved, engine, on_gpu=False, threads=1, version=0)
        self.name, self.drawn_for, self.loads = name, [], []

        async def fetched(reference):
            return reference

        def make():
            policy = type(assembly.policy)(cloned(assembly.policy.model), assembly.policy.tokenizer)
            return EngineReplica(making, policy, fetched=fetched, node="here")

        super().__init__(make)

    async def generate(self, request):
        self.drawn_for.append(request.episode)
        return await self.ask(lambda replica: replica.generate(request))

    async def score(self, tokens, *, start):
        return await self.ask(lambda replica: replica.score(tokens, start=start))

    async def tokenize(self, text):
        return await self.ask(lambda replica: replica.tokenize(text))

    async def load(self, parcel, *, in_flight):
        self.loads.append(parcel)
        return await self.ask(lambda replica: replica.load(parcel, in_flight))

    async def sleep(self):
        await self.ask(lambda replica: replica.sleep())

    async def status(self):
        return await self.ask(lambda replica: replica.status())

    def abort(self, episode):
        if self.thing is not None:
            self.thing.abort(episode)

    def forget(self, episode):
        if self.thing is not None:
            self.thing.forget(episode)


def cloned(model):
    import copy

    return copy.deepcopy(model)


class HereWorker(Killable):
    """A worker with the environments of the recipe."""

    def __init__(self, make, name):
        self.name, self.works = name, []
        super().__init__(make)

    async def play(self, work):
        self.works.append(work)
        with self.alive() as (worker, died):
            stream = worker.play(work)
            dies = asyncio.ensure_future(died.wait())
            try:
                while True:
                    following = asyncio.ensure_future(anext(stream))
                    await asyncio.wait([following, dies], return_when=asyncio.FIRST_COMPLETED)
                    if dies.done():
                        following.cancel()
                        await asyncio.gather(following, return_exceptions=True)
                        raise ActorUnavailable("it died")
                    try:
                        yield following.result()
                    except StopAsyncIteration:
                        return
            finally:
                dies.cancel()
                await stream.aclose()

    async def status(self):
        return await self.ask(lambda worker: worker.status())


class HereCluster:
    """A local cluster; see `Cluster`. `async with` starts and ends it."""

    def __init__(self, assembly, *, replicas=2, engines=(), workers=2, places=64, say=lambda line: None):
        self.assembly, self.say = assembly, say
        engines = engines or [None] * replicas
        self.replicas = [HereReplica(assembly, f"replica {k}", engine) for k, engine in enumerate(engines)]
        begin = dict(assembly.policy.model.named_parameters())
        capabilities = self.replicas[0].thing._engine.capabilities
        self.engine = WeightSyncEngine(
            self.replicas,
            SharedWeights(dict, begin, version=0),
            capabilities=capabilities,
            patience_seconds=20,
            notify=say,
        )

        def make():
            engine = ReplicatedEngine(self.replicas, capabilities=capabilities, patience_seconds=20)
            return EnvironmentWorker(assembly, engine, reward=None, places=places, node="here")

        self.workers = [HereWorker(make, f"worker {k}") for k in range(workers)]
        self.pool = WorkerPool(self.workers, places=places, patience_seconds=20, notify=say)

    async def __aenter__(self):
        self.engine.start()
        while not all(seat.up for seat in self.engine.handles):  # noqa: ASYNC110 - without a notification
            await asyncio.sleep(0.001)
        self.pool.start()
        return self

    async def __aexit__(self, *error):
        await self.close()

    async def close(self):
        await self.pool.close()
        await self.engine.close()

    def metrics(self):
        return {}

    def distribute_collector(self, collector):
        fields = {name: getattr(collector, name) for name, f in Collector.__dataclass_fields__.items() if f.init}
        return DistributedCollector(
            **fields,
            pool=self.pool,
            recipe_strategy=self.assembly.strategy,
            temperature=collector.actor.sampling.temperature,
            at_evaluation=collector.method is not self.assembly.method,
        )
