"""Files of `benchmarks/evidence/benchmarks`: contenders, budget, and the claims of papers that compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from claims.measures import Measure, measure_from
from whetstone.errors import RecipeError, did_you_mean
from whetstone.recipe.error_messages import describe_validation_error
from whetstone.recipe.settings_base import Settings
from whetstone.recipe.stage_settings import BudgetSettings
from whetstone.recipe.yaml_text import yaml_document


class Claim(Settings):
    """A paper's statement about two contenders."""

    paper: str
    """Key of the paper in `papers.yaml`."""
    claim: str
    """The statement, in one sentence."""
    better: str
    than: str | list[str]
    measure: Any = "success"
    """One measure or a list, in the form that `measure_from` reads."""
    within: float = Field(0.0, ge=0)
    """Loss, in units of the measure, that the claim allows."""
    switch: str
    """Setting in which the contenders differ and which the paper credits."""
    untestable: str | None = None
    """Reason why the comparison cannot show the claim: a schedule longer than the run, another reward, a prompt that
    the policy never read, or a claim that was written after its rows."""

    @property
    def measures(self) -> list[Measure]:
        """Return the measures, each a part of the claim.

        Raises:
            RecipeError: Same as for `measure_from`.
        """
        return [measure_from(each) for each in (self.measure if isinstance(self.measure, list) else [self.measure])]

    @property
    def others(self) -> list[str]:
        """Return the contenders that `better` is compared with."""
        return [self.than] if isinstance(self.than, str) else self.than


class Untried(Settings):
    """A claim that the bench cannot test."""

    paper: str
    claim: str
    why: str


class BenchSettings(Settings):
    """Content of a file of `benchmarks/evidence/benchmarks`."""

    question: str
    script: str | None = None
    """Benchmark script that runs it and defines the contenders; None: the contenders are recipes."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """Keys of a recipe, `extends` among them. Its supervised stage is the warm-up of all contenders, except of those
    that remove it (`supervised: null`)."""
    budget: BudgetSettings = Field(default_factory=BudgetSettings)
    """Budget of the reinforcement of each contender."""
    seeds: int = Field(5, ge=1)
    learning: bool = True
    """Whether the entry rule applies; False for a bench that measures time or a policy that is not trained."""
    untrained: list[str] = Field(default_factory=list)
    """Contenders that do not learn. Comparisons with them have figures and are not counted."""
    contenders: dict[str, dict[str, Any]]
    """Contender → keys that override the recipe; `with` names methods. Empty for a script."""
    claims: list[Claim] = Field(default_factory=list)
    not_tried: list[Untried] = Field(default_factory=list)


def read_bench(path: Path) -> BenchSettings:
    """Read and validate a bench file.

    Raises:
        RecipeError: It is not YAML, a key is unknown, or a claim names an unknown contender or measure.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from None
    document = yaml_document(text, str(path), plain=True)
    if not isinstance(document, dict):
        raise RecipeError(f"{path}:1  a bench is a mapping of keys to values")
    try:
        bench = BenchSettings.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"{path}  {describe_validation_error(error, BenchSettings)}") from None
    if len(bench.contenders) < 2:
        raise RecipeError(f"{path}  contenders: two or more are compared")
    for name in bench.untrained:
        if name not in bench.contenders:
            raise RecipeError(f"{path}  untrained: {unknown_contender(name, bench)}")
    for index, claim in enumerate(bench.claims):
        for name in (claim.better, *claim.others):
            if name not in bench.contenders:
                raise RecipeError(f"{path}  claims.{index}: {unknown_contender(name, bench)}")
        try:
            claim.measures  # noqa: B018
        except RecipeError as error:
            raise RecipeError(f"{path}  claims.{index}.{error}") from None
    return bench


def unknown_contender(name: str, settings: BenchSettings) -> str:
    """Return the message for a contender that a bench does not have."""
    near = did_you_mean(name, settings.contenders)
    return f'no contender "{name}"{near}; there are {", ".join(settings.contenders)}'
