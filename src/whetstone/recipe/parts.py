"""What do all settings have in common? Unknown keys are errors, and a part may be written as its name alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0)]
"""A duration."""


class Settings(BaseModel):
    """Keys of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    CHANGES: ClassVar[Mapping[str, str]] = {}
    """Fields that can change when a run continues, with the effect; see `recipe.continuing`."""


class Part(BaseModel):
    """A part by name, and its options; a name alone is enough in a recipe."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    """A built-in's short name, or `package.module:name`."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
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


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class that a field holds, also inside a mapping or an optional; None: it holds a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return None if issubclass(annotation, Part) else annotation
    return next((section for inner in get_args(annotation) if (section := section_of(inner)) is not None), None)


def changeable(**fields: str) -> dict[str, str]:
    """Return effect by field, from the fields of each effect: `changeable(update="learning_rate max_grad_norm")`."""
    return {field: effect for effect, listed in fields.items() for field in listed.split()}


def named(default: str | None = None) -> BeforeValidator:
    """A name alone is a part; options alone are options of the default."""

    def read(given: Any) -> Any:
        if isinstance(given, str):
            return {"name": given}
        return {"name": default, **given} if isinstance(given, Mapping) and default is not None else given

    return BeforeValidator(read)


def listed() -> BeforeValidator:
    """One alone is a list of one."""
    return BeforeValidator(lambda given: [given] if isinstance(given, str | Mapping) else given)


def mode_alone() -> BeforeValidator:
    """A mode alone is enough."""
    return BeforeValidator(lambda given: {"mode": given} if isinstance(given, str) else given)
