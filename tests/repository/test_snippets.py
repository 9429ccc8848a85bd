"""Everything on a page works: commands exist with their options, recipes are valid, code runs.

The code of the README, `your-own.md`, `own-method.md` and `trackers.md` runs completely in other tests
(`test_readme.py`,
`test_own_method.py`, `test_docs.py`), as do the examples of `api.md` (`test_primitives.py`).
"""

import re
import shlex
from pathlib import Path

import click
import pytest
from ruamel.yaml import YAML

from whetstone.cli.main import main
from whetstone.errors import WhetstoneError
from whetstone.recipe import load_recipe
from whetstone.recipe.settings import Recipe

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*/*.md"), ROOT / "README.md", ROOT / "SKILL.md"])
KEYS = {*Recipe.model_fields, "extends", "with"}
RUN_ELSEWHERE = {"README.md", "your-own.md", "own-method.md", "trackers.md", "api.md", "export.md", "tinker.md"}
"""Pages whose code runs in separate tests."""
EXCUSED = ("has no effect",)
"""Message about a key that has an effect only with keys that the demo does not set."""
ELLIPSIS = re.compile(r"…|\.\.\.")


def blocks(page, language):
    text = re.sub(r"^````\w*\n.*?^````$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)  # quotes a fence
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(page):
    """Return command lines of blocks and of the text."""
    shown_lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    lines = [line.partition("whetstone ")[2] for line in shown_lines if re.match(r"\$? ?(\S*/)?whetstone ", line)]
    lines += re.findall(r"`whetstone ([^`\n]+)`", page.read_text())
    return [re.sub(r"\s+#.*", "", line) for line in lines]


def wrong_with(words):
    """Return the error of click for these words before anything runs, or an empty string."""
    command, context = main_group(), click.Context(main_group(), info_name="whetstone")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        command = command.get_command(context, name)
        if command is None:
            return f"no command {name}"
        context = click.Context(command, parent=context, info_name=name, resilient_parsing=True)
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
    strange = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return ", ".join(word for word in strange if word not in known)


def main_group():
    from whetstone.cli import main as module

    return next(each for each in vars(module).values() if isinstance(each, click.Group))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_exists_with_its_options(page):
    wrong = {}
    for line in commands(page):
        words = [word for word in shlex.split(line) if not ELLIPSIS.search(word)]
        if words and re.fullmatch(r"[a-z-]+", words[0]) and (error := wrong_with(words)):
            wrong[line] = error
    assert wrong == {}


def recipes_shown():
    for page in PAGES:
        for number, block in enumerate(blocks(page, "yaml")):
            keys = YAML(typ="safe").load(ELLIPSIS.sub("name", block)) if page.name != "recipes.md" else None
            if isinstance(keys, dict) and set(keys) <= KEYS:
                yield pytest.param(keys, id=f"{page.name}-{number}")


@pytest.mark.parametrize("keys", list(recipes_shown()))
def test_every_recipe_of_a_page_is_valid(keys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    defaults = {"supervised": None, "reinforcement": None, "ablations": None} if "stages" in keys else {}
    problem = ""
    try:
        load_recipe(keys if {"extends", "policy"} & set(keys) else {"extends": "demo", **defaults, **keys})
    except WhetstoneError as error:
        problem = str(error)
    assert not problem or any(excused in problem for excused in EXCUSED), problem


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=f"{page.name}-{number}")
        for page in PAGES
        if page.name not in RUN_ELSEWHERE
        for number, code in enumerate(blocks(page, "python"))
    ],
)
def test_other_code_runs(code):
    defined = {"__name__": "shown"}
    exec(compile(code, "shown", "exec"), defined)
    assert defined.keys() > {"__name__", "__builtins__"}  # the code ran, and defined or imported a name


def test_pages_have_commands_recipes_and_code():
    assert sum(len(commands(page)) for page in PAGES) > 100
    assert len(list(recipes_shown())) > 15
    assert main
