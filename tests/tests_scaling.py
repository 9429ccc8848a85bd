"""Replicas and workers in this process, which can be killed: all of a cluster but Ray."""

import asyncio
from contextlib import contextmanager

from whetstone.rollout import Collector
from whetstone.scaling.engine_replica import EngineReplica, ReplicaMaking
from whetstone.scaling.environment_worker import EnvironmentWorker
from whetstone.scaling.protocol import Gone
from whetstone.scaling.published import Published
from whetstone.scaling.publishing_engine import PublishingEngine
from whetstone.scaling.replicated_engine import ReplicatedEngine
from whetstone.scaling.spread_collector import SpreadCollector
from whetstone.scaling.worker_pool import WorkerPool


class Killable:
    """Something made by `make`, whose calls under way end in `Gone` when it is killed."""

    def __init__(self, make):
        self.make, self.died = make, asyncio.Event()
        self.thing = make()

    def kill(self, *, back=True):
        """It dies; another begins in its place, unless there is to be none."""
        self.died.set()
        self.died = asyncio.Event()
        self.thing = self.make() if back else None

    @contextmanager
    def alive(self):
        if self.thing is None:
            raise Gone("it is dead")
        yield self.thing, self.died

    async def ask(self, call):
        with self.alive() as (thing, died):
            asked, dies = asyncio.ensure_future(call(thing)), asyncio.ensure_future(died.wait())
            try:
                await asyncio.wait([asked, dies], return_when=asyncio.FIRST_COMPLETED)
                if dies.done():
                    raise Gone("it died")
                return asked.result()
            finally:
                asked.cancel()
                dies.cancel()


class HereReplica(Killable):
    """A replica with the recipe's engine, or another."""

    def __init__(self, assembly, name, engine=None):
        engine = engine or assembly.resolved.recipe.engine
        making = ReplicaMaking(assembly.resolved, engine, on_gpu=False, threads=1, version=0)
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
    """A worker with the recipe's environments."""

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
                        raise Gone("it died")
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
    """See `Cluster`; `async with` begins and ends it."""

    def __init__(self, assembly, *, replicas=2, engines=(), workers=2, places=64, say=lambda line: None):
        self.assembly, self.say = assembly, say
        engines = engines or [None] * replicas
        self.replicas = [HereReplica(assembly, f"replica {k}", engine) for k, engine in enumerate(engines)]
        begin = dict(assembly.policy.model.named_parameters())
        abilities = self.replicas[0].thing._engine.abilities
        self.engine = PublishingEngine(
            self.replicas,
            Published(dict, begin, version=0),
            abilities=abilities,
            patience_seconds=20,
            say=say,
        )

        def make():
            engine = ReplicatedEngine(self.replicas, abilities=abilities, patience_seconds=20)
            return EnvironmentWorker(assembly, engine, reward=None, places=places, node="here")

        self.workers = [HereWorker(make, f"worker {k}") for k in range(workers)]
        self.pool = WorkerPool(self.workers, places=places, patience_seconds=20, say=say)

    async def __aenter__(self):
        self.engine.start()
        while not all(seat.up for seat in self.engine.seats):  # noqa: ASYNC110 - nobody tells of it
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

    def spread(self, collector):
        given = {name: getattr(collector, name) for name, f in Collector.__dataclass_fields__.items() if f.init}
        return SpreadCollector(
            **given,
            pool=self.pool,
            recipe_strategy=self.assembly.strategy,
            temperature=collector.actor.sampling.temperature,
            at_evaluation=collector.method is not self.assembly.method,
        )
