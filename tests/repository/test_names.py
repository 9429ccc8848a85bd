"""Names that users type or parse are terms of the field: recipe keys, components, options, metrics, commands."""

import importlib.util
import re
from pathlib import Path

import click
import pytest
from pydantic import BaseModel

from whetstone import renames
from whetstone.cli.main import cli
from whetstone.plugins import get_component_options
from whetstone.recipe.error_messages import find_settings_models
from whetstone.recipe.settings import Recipe
from whetstone.reporting.metric_names import METRICS

pytestmark = pytest.mark.structure

OLD_WORDS = re.compile(
    r"(?:^|[\W_])(?:again|alike|alone|apart|asked|behind|beside|drawn|foreign|found|given|gone|heard|held|here|least|"
    r"likelier|made|mine|most|nobody|ours|probed|said|shares?|shown|spent|stands|stored|surprising|taught|there|theirs|"
    r"told|whole|worth)(?:$|[\W_])"
)
BRITISH = re.compile(r"is(?:e|ed)(?:_|$)|isation|colour|behaviour|neighbour|licence|catalogue|labelled|judgement")
AMERICAN = re.compile(r"(?:^|[_./-])(?:noise|precise|advise|raise|revise|supervise|\w*wise)d?(?:$|[_./-])")


EXCEPTIONS = {"try_again"}
"""Names of papers."""
INJECTED = {"heard", "stored_groups"}
"""Arguments that the code passes, not the recipe."""


def recipe_keys(model: type[BaseModel], above: str = "") -> dict[str, None]:
    """Return the dotted keys of a settings class."""
    keys = {}
    for name, field in model.model_fields.items():
        keys[f"{above}{name}"] = None
        for below in find_settings_models(field.annotation):
            keys |= recipe_keys(below, f"{above}{name}.")
    return keys


def component_names() -> dict[str, None]:
    """Return `kind/name` and `kind/name/option` of the built-in components."""
    spec = importlib.util.spec_from_file_location(
        "keys_page", Path(__file__).parents[2] / "docs" / "make" / "keys_page.py"
    )
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    names = {}
    for kind, registry in page.KINDS:
        kind = kind.split(",")[0].replace(" ", "_")
        for name, component in registry.items():
            names[f"{kind}/{name}"] = None
            names |= dict.fromkeys(
                f"{kind}/{name}/{option}" for option in get_component_options(component) if option not in INJECTED
            )
    return names


def command_names(command: click.Command, above: str = "") -> dict[str, None]:
    """Return commands and options, such as `serve --host`."""
    names = {}
    for parameter in command.params:
        names |= {f"{above} {option}": None for option in parameter.opts if option.startswith("--")}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            names[f"{above} {name}"] = None
            names |= command_names(command.get_command(context, name), f"{above} {name}")
    return names


def metric_names() -> dict[str, None]:
    """Return the names of `metrics.jsonl`."""
    return {metric.name: None for metric in METRICS}


NAMES = {"recipe key": lambda: recipe_keys(Recipe), "component": component_names, "metric": metric_names,
         "command": lambda: command_names(cli)}  # fmt: skip


@pytest.mark.parametrize("kind", NAMES)
def test_no_name_for_users_has_an_outdated_word(kind):
    names = NAMES[kind]()
    assert len(names) > 60
    old = [name for name in names if OLD_WORDS.search(re.sub("|".join(["held.out", *EXCEPTIONS]), "", name))]
    british = [name for name in names if BRITISH.search(name) and not AMERICAN.search(name)]
    assert (old, british) == ([], [])


def test_renamed_key_is_not_a_key_of_this_release():
    assert [key for key in recipe_keys(Recipe) if renames.renamed_key(key)] == []
