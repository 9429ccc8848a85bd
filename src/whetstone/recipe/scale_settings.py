"""What does a recipe say of the machines it runs on?"""

from __future__ import annotations

from pydantic import Field

from whetstone.recipe.parts import Settings


class ScaleSettings(Settings):
    """Where sampling and learning run."""

    learner_processes: int = Field(1, ge=1)
    """Processes that learn together, each with a share of the weights and of every batch."""
