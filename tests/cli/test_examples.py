"""Examples of commands: every command has some, and all are valid."""

import shlex

import click
import pytest

from support.cli import whetstone
from whetstone.cli.main import COMMANDS, EXAMPLES, cli
from whetstone.recipe import built_in_recipes, load_recipe

LINES = [(name, line) for name, lines in EXAMPLES.items() for line in lines]


def every_command():
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield name, command
        if isinstance(command, click.Group):
            for below, other in command.commands.items():
                yield f"{name} {below}", other


def test_every_command_has_examples_and_only_commands_have():
    assert {name for name, _ in every_command()} == set(EXAMPLES)


@pytest.mark.parametrize(("name", "line"), LINES, ids=[line for _, line in LINES])
def test_examples_are_valid_commands(name, line):
    words = shlex.split(line.partition(" >")[0])
    assert words[0] == "whetstone"
    assert " ".join(words[1:]).startswith(name)
    command, arguments = dict(every_command())[name], words[1 + len(name.split()) :]
    context = command.make_context(name, list(arguments))  # refuses unknown options
    recipe, overrides = context.params.get("recipe"), context.params.get("overrides", ())
    if recipe in built_in_recipes():
        load_recipe(recipe, overrides)


def test_help_contains_the_examples():
    for words in (["train"], ["data", "export"], ["models"], ["models", "add"]):
        printed = whetstone(*words, "--help").stdout
        for line in EXAMPLES[" ".join(words)]:
            assert f"  {line}\n" in printed
