"""Settings of `start_from`: the checkpoint of another run from which a new run starts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BeforeValidator, Field

from whetstone.recipe.resolve_paths import split_start
from whetstone.recipe.settings_base import Settings


class StartSettings(Settings):
    """Checkpoint of another run from which a new run starts. Short form: `RUN` or `RUN@STEP`."""

    path: str
    """Run directory (of a chain of stages, the last one is used), or a checkpoint directory. The run stores the
    checkpoint that it started from."""
    step: int | None = Field(None, ge=0)
    """Number of the checkpoint, as in `checkpoints/step-000050`; null: the latest one."""
    what: Literal["weights", "all"] = "weights"
    """`weights`: only the weights. `all`: also the state of optimizer, critics and stateful components (replay buffers,
    curriculum); requires that the first stage has the kind and optimizer of the checkpoint's stage. Steps, schedules
    and tasks start from the beginning in both cases."""


def coerce_start() -> BeforeValidator:
    """Return the validator that reads `RUN` or `RUN@STEP`."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        path, step = split_start(value)
        return {"path": path, "step": step}

    return BeforeValidator(read)
