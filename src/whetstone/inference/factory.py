"""Which engine does a recipe's `engine:` stand for? A name of ours, or `package.module:Class`.

Whatever makes one takes, by keyword and where it asks for them, the policy, how many sequences it draws for at once and
the version its weights have; every other keyword is an option of the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from whetstone.inference.local import LocalEngine
from whetstone.inference.protocol import Engine, InFlight, Weights
from whetstone.policies import Policy


def local(*, policy: Policy, max_sequences: int, version: int = 0) -> Engine:
    """In this process, from the policy's own model: what is trained is what draws, and no weight is copied."""
    return LocalEngine(
        policy.model,
        context_length=policy.context_length,
        rows=max_sequences,
        version=version,
        detokenize=policy.tokenizer.decode,
    )


ENGINES: Mapping[str, Callable[..., Engine]] = {"local": local}
"""By the name a recipe has for it."""


async def publish(weights: Weights, engine: Engine, version: int, *, in_flight: InFlight = "drain") -> None:
    """Have an engine draw from these weights from now on, under this version."""
    await engine.load_weights(weights, version, in_flight=in_flight)
