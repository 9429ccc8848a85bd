"""Base classes of recipe settings: unknown keys are errors, and a component can be given by its name only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0)]
"""A duration, in seconds."""


class Settings(BaseModel):
    """A section of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    CHANGES: ClassVar[Mapping[str, str]] = {}
    """Fields that can change when a run continues, with the effect; see `recipe.continuing`."""


class Part(BaseModel):
    """A component by name, with its options; in a recipe, the name is sufficient."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    """Name of a built-in component, or `package.module:name`."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of the component, without the name."""
        return dict(self.model_extra or {})


class WeightSettings(Settings):
    """Weight that moves from `start` to `end` in half a cosine."""

    start: float
    """Weight at the first step of the stage."""
    end: float = 0.0
    """Weight after `steps`."""
    steps: int = Field(ge=1)
    """Steps until it is reached."""


class LossTermPart(Part):
    """A loss term by name, its weight, the tokens of its mean, and options of its function."""

    weight: float | WeightSettings = 1.0
    """A number, or `{start: 0.1, end: 0, steps: 100}`."""
    over: Literal["sampled", "expert", "all", "critic"] = "sampled"
    """`sampled`: action tokens of the policy's episodes, weighed by `aggregation`; `expert`: tokens that an expert
    wrote; `all`: both; `critic`: tokens at which critics predict."""


def find_section(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class that a field holds, also inside a mapping or an optional; None: it holds a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return None if issubclass(annotation, Part) else annotation
    return next((section for inner in get_args(annotation) if (section := find_section(inner)) is not None), None)


def list_changeable_fields(**fields: str) -> dict[str, str]:
    """Return effect by field, from the fields of each effect.

    Example: `list_changeable_fields(update="learning_rate max_grad_norm")`.
    """
    return {field: effect for effect, listed in fields.items() for field in listed.split()}


def coerce_name(default: str | None = None) -> BeforeValidator:
    """Return a validator that accepts a name as a component, and options without a name for the default component."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        return {"name": default, **value} if isinstance(value, Mapping) and default is not None else value

    return BeforeValidator(read)


def coerce_list() -> BeforeValidator:
    """Return a validator that accepts a single item as a list."""
    return BeforeValidator(lambda value: [value] if isinstance(value, str | Mapping) else value)


def coerce_mode() -> BeforeValidator:
    """Return a validator that accepts a mode without options."""
    return BeforeValidator(lambda value: {"mode": value} if isinstance(value, str) else value)
