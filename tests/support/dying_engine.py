"""An engine that dies on request of a test."""

from whetstone.errors import InfrastructureError
from whetstone.inference import LocalEngine

MADE = []


class Dying(LocalEngine):
    """A `LocalEngine` that fails at the next request if `dying` is set."""

    dying = False

    async def generate(self, request):
        """See `Engine.generate`."""
        if self.dying:
            self._closed = True
            raise InfrastructureError("its server is gone")
        return await super().generate(request)


def dying(*, policy, max_sequences, version=0):
    """Build the engine of a recipe."""
    MADE.append(Dying(policy.model, context_length=policy.context_length, rows=max_sequences, version=version))
    return MADE[-1]
