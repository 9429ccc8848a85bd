"""Base classes of recipe settings.

Unknown keys are errors, and a component can be given by its name only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0)]
"""Duration in seconds, above 0."""


class Settings(BaseModel):
    """Base class of the sections of a recipe; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    CHANGES: ClassVar[Mapping[str, str]] = {}
    """Fields that can change when a run resumes, with the effect of a change; see `recipe.resume_changes`."""


class Part(BaseModel):
    """Component of a recipe: a name, and options as further keys.

    In a recipe, a component without options can be written as its name.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    """Name of a built-in component, or `package.module:name`."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of the component: all keys except the fields of this class."""
        return dict(self.model_extra or {})


class WeightSettings(Settings):
    """Weight that changes from `start` to `end` along half a cosine."""

    start: float
    """Weight at the first step of the stage."""
    end: float = 0.0
    """Weight after `steps`."""
    steps: int = Field(ge=1)
    """Number of steps until the weight reaches `end`."""


class LossTermPart(Part):
    """Loss term of a recipe: name, weight, tokens, and options of its function."""

    weight: float | WeightSettings = 1.0
    """Weight of the term: a number, or a schedule `{start: 0.1, end: 0, steps: 100}`."""
    over: Literal["sampled", "expert", "all", "critic"] = "sampled"
    """Tokens over which the loss is averaged. `sampled`: action tokens of the policy's episodes, weighed by
    `aggregation`; `expert`: tokens that an expert wrote; `all`: both; `critic`: tokens at which critics predict."""


def find_section(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class in the type annotation of a field; None for a plain value.

    Classes inside a mapping or an optional are found too.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return None if issubclass(annotation, Part) else annotation
    return next((section for inner in get_args(annotation) if (section := find_section(inner)) is not None), None)


def list_changeable_fields(**fields: str) -> dict[str, str]:
    """Return the effect of a change by field, from the fields of each effect.

    Example: `list_changeable_fields(update="learning_rate max_grad_norm")`.

    Args:
        fields: Effect → names of fields, separated by spaces.
    """
    return {field: effect for effect, listed in fields.items() for field in listed.split()}


def coerce_name(default: str | None = None) -> BeforeValidator:
    """Return a validator that accepts the name of a component instead of a mapping.

    Args:
        default: Component that options without a name belong to; None: a name is required.
    """

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
