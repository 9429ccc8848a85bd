"""Secrets of a recipe are in no file of a run, no page, no tracker and no message."""

import asyncio
import functools
import json
import pickle

import httpx2
import pytest
import yaml

from support.cli import whetstone
from support.leaked_secrets import (
    LITERAL,
    PLANTED,
    Shop,
    literal_options,
    mode_of,
    planted_in,
    set_variables,
    stand_in_trackers,
    variable_options,
)
from support.small import SMALL
from whetstone.chat.message import ToolCall
from whetstone.errors import RecipeError, RunDirectoryError
from whetstone.masking import secret_spans
from whetstone.recipe import load_recipe
from whetstone.recipe.variables import mask_recipe_text
from whetstone.record.run_directory import check_inputs, open_run_directory
from whetstone.tools.toolset import Toolset
from whetstone.viewer.runs import open_runs
from whetstone.viewer.viewer_app import Viewer, view_application

TRACKERS = [{"name": name} for name in ("wandb", "mlflow", "trackio", "tensorboard")]
LARGER = ["policy.tiny.context_length=1024", "ablations=null"]


def written_recipe(folder, tool, **more):
    """Write a recipe file with these options of the tool."""
    folder.mkdir(exist_ok=True)
    recording = {
        "name": "support.leaked_secrets:Recording",
        "path": str(folder / "received.jsonl"),
        "api_key": tool["api_key"],
    }
    keys = {
        "extends": "demo",
        "environment": {"tools": [tool]},
        "reward": "support.leaked_secrets:paying",
        "trackers": [*TRACKERS, recording],
        **more,
    }
    path = folder / "shop.yaml"
    path.write_text(yaml.safe_dump(keys, sort_keys=False))
    return path


def trained(folder, recipe, *more):
    return whetstone("train", recipe, *SMALL, *LARGER, "--run-dir", folder / "run", *more, cwd=folder)


def assert_absent(text, where):
    assert [value for value in PLANTED if value in text] == [], where


def viewed(run, cache):
    """Return the text of every page of the viewer about a run."""
    (opened,) = open_runs([run], cache=cache)
    opened.refresh()
    app = view_application(Viewer([opened]))

    async def get(path):
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get(path)).text

    names = ("overview", "curves", "choices", "trajectories", "tools", "steps", "episodes", "data")
    pages = [asyncio.run(get(path)) for path in ("/", "/api/state", *(f"/api/runs/0/{name}" for name in names))]
    assert "headers" in "".join(pages)
    opened.close()
    return "".join(pages)


@pytest.fixture(params=["literal", "variable"])
def planted(request, tmp_path, monkeypatch):
    """(options of the tool, folder) with planted secrets, as literals or as environment variables."""
    set_variables(monkeypatch)
    options_of = literal_options if request.param == "literal" else variable_options
    return options_of(tmp_path / "count"), tmp_path / request.param


@pytest.mark.slow
def test_run_stores_and_prints_no_secret(planted, tmp_path, monkeypatch):
    tool, folder = planted
    calls = stand_in_trackers(monkeypatch)
    recipe = written_recipe(folder, tool)
    done = trained(folder, recipe)
    assert done.returncode == 0, done.stderr
    printed = whetstone("show", folder / "run", "--json", cwd=folder)
    assert "headers" in printed.stdout
    received = (folder / "received.jsonl").read_text()
    assert '"headers"' in received
    assert "headers" in repr(calls)
    recipe.unlink()
    assert planted_in(folder) == []
    judged = whetstone("evaluate", folder / "run", "--episodes", "2", "--json", cwd=folder)
    explained = whetstone("why", folder / "run", "--json", cwd=folder)
    texts = {
        "output": done.stdout + done.stderr, "show": printed.stdout, "trackers": repr(calls),
        "evaluate": judged.stdout + judged.stderr, "why": explained.stdout + explained.stderr,
        "viewer": viewed(folder / "run", tmp_path / "cache"),
    }  # fmt: skip
    for what, text in texts.items():
        assert_absent(text, what)
    assert planted_in(folder) == []
    for name in ("recipe.yaml", "inputs.json", "environment.json"):
        assert mode_of(folder / "run" / name) == 0o600, name


@pytest.mark.slow
def test_an_error_that_repeats_secrets_is_masked_everywhere(planted, monkeypatch):
    tool, folder = planted
    stand_in_trackers(monkeypatch)
    recipe = written_recipe(folder, tool, reward="support.leaked_secrets:failing")
    done = trained(folder, recipe)
    recipe.unlink()
    assert done.returncode == 2
    assert "the backend refused" in done.stderr
    # a run masks the secrets of the recipe that it trains, so the error repeats those that were planted otherwise
    is_literal = tool["api_key"] in PLANTED
    own = LITERAL.values() if is_literal else [value for value in PLANTED if value not in LITERAL.values()]
    assert [value for value in own if value in done.stderr + done.stdout] == []
    assert [planting for planting in planted_in(folder) if planting[1] in own] == []


def test_the_stored_recipe_keeps_variables_and_masks_literals(tmp_path, monkeypatch):
    set_variables(monkeypatch)
    for options in (literal_options(tmp_path), variable_options(tmp_path)):
        resolved = load_recipe({"extends": "demo", "ablations": None, "environment": {"tools": [options]}})
        assert_absent(resolved.dump(), "recipe")
        assert_absent(json.dumps(resolved.to_dict()), "stored")
        assert_absent("".join(resolved.notes), "notes")
        (used,) = resolved.recipe.environment.options["tools"]
        assert used["headers"]["Authorization"].removeprefix("Bearer ") in PLANTED
        stored = resolved.to_dict()["environment"]["tools"][0]
        assert stored["headers"]["Accept"] == "application/json"
        assert stored["variables"]["LEVEL"] == "easy"
        assert stored["headers"]["Authorization"].startswith("Bearer ${")


def test_each_literal_secret_has_a_warning_with_key_and_remedy(tmp_path):
    keys = {"extends": "demo", "environment": {"tools": [literal_options(tmp_path)]}}
    warned = [note for note in load_recipe(keys).notes if "${NAME}" in note]
    keys = ("headers.Authorization", "environment.SHOP", "variables.BACKEND", "api_key", "token", "password", "url")
    for key in (*keys, "command.2.--token", "note"):
        assert sum(f"environment.tools.0.{key}: " in note for note in warned) == 1, key
    assert len(warned) == 9


def test_a_variable_that_is_not_set_is_one_line_before_anything_is_written(tmp_path):
    tool = {"name": "support.leaked_secrets:Shop", "headers": {"X-Key": "${NOT_SET_HERE}"}}
    recipe = written_recipe(tmp_path, {"api_key": "${NOT_SET_HERE}", **tool}, trackers=[])
    done = whetstone("train", recipe, "--run-dir", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "environment.tools.0.api_key: the environment variable NOT_SET_HERE is not set; export it" in done.stderr
    assert not (tmp_path / "run").exists()


def test_variables_work_in_any_value_and_a_doubled_dollar_is_literal(monkeypatch):
    monkeypatch.setenv("STEPS", "3")
    monkeypatch.setenv("KIND", "product")
    keys = {
        "extends": "demo", "ablations": None, "title": "$${STEPS} of ${KIND}", "reinforcement": {"steps": "${STEPS}"},
        "tasks": {"source": "arithmetic", "kinds": ["${KIND}"]}, "environment": {"tools": ["pocket_${TOOL}"]},
    }  # fmt: skip
    monkeypatch.setenv("TOOL", "calculator")
    resolved = load_recipe(keys)
    recipe = resolved.recipe
    assert recipe.title == "${STEPS} of product"
    assert (recipe.reinforcement.steps, recipe.tasks.options["kinds"]) == (3, ["product"])
    assert recipe.environment.options["tools"] == ["pocket_calculator"]
    stored = resolved.to_dict()
    assert stored["title"] == "$${STEPS} of ${KIND}"
    assert (stored["reinforcement"]["steps"], stored["tasks"]["kinds"]) == ("${STEPS}", ["${KIND}"])
    assert load_recipe(yaml.safe_load(resolved.dump())).recipe == recipe


def test_the_result_of_a_tool_that_repeats_its_settings_is_masked(planted):
    options, _ = planted
    resolved = load_recipe({"extends": "demo", "ablations": None, "environment": {"tools": [options]}})
    (used,) = resolved.recipe.environment.options["tools"]

    async def results():
        tools = Toolset([functools.partial(Shop, **{key: value for key, value in used.items() if key != "name"})])
        call = ToolCall("pocket_calculator", '{"expression": "1 + 1"}', "call_0")
        return [(await tools.call(call)).content[0].text for _ in range(14)]

    received = asyncio.run(results())
    assert_absent("".join(received), "results")
    assert {"7 by application/json", "7 by easy", "7 by --token"} <= set(received)


@pytest.mark.slow
def test_a_run_resumes_from_its_stored_recipe_if_masked_values_are_given(tmp_path, monkeypatch):
    folder = tmp_path / "shop"
    recipe = written_recipe(folder, literal_options(tmp_path / "count"), trackers=[])
    assert trained(folder, recipe).returncode == 0
    stored, resuming = folder / "run" / "recipe.yaml", ("--run-dir", folder / "run", "--resume")
    refused = whetstone("train", stored, *resuming, cwd=folder)
    assert refused.returncode == 2
    messages = "environment.tools.0.headers.Authorization: the secret of this key was not stored with the recipe; "
    assert f"{messages}export MASKED_AUTHORIZATION with its value" in refused.stderr
    masked = {"AUTHORIZATION": "headers", "SHOP": "environment", "BACKEND": "variables", "NOTE": "provider"}
    masked |= {name.upper(): name for name in ("api_key", "token", "password", "url")}
    for name, planted in masked.items():
        monkeypatch.setenv(f"MASKED_{name}", LITERAL[planted])
    monkeypatch.setenv("MASKED_URL_2", LITERAL["query"])
    monkeypatch.setenv("MASKED_TOKEN_2", LITERAL["command"])
    done = whetstone("train", stored, *resuming, cwd=folder)
    assert done.returncode == 0, done.stderr
    same = whetstone("train", recipe, *SMALL, *LARGER, *resuming, cwd=folder)
    assert same.returncode == 0, same.stderr
    assert planted_in(folder / "run") == []


def test_credential_can_change_before_a_resume_and_other_variables_cannot(tmp_path, monkeypatch):
    run, messages = tmp_path / "run", []
    keys = {"extends": "demo", "ablations": None, "supervised": None, "title": "${TITLE_HERE}"}
    keys["reinforcement"] = {"optimizer": "adamw"}
    keys["environment"] = {"tools": [{"name": "support.leaked_secrets:Shop", "token": "${SHOP_TOKEN}"}]}
    monkeypatch.setenv("TITLE_HERE", "one")
    monkeypatch.setenv("SHOP_TOKEN", "pl4nted-first")
    with open_run_directory(run, load_recipe(keys), resume=False):
        (run / "metrics.jsonl").write_text("")
    monkeypatch.setenv("SHOP_TOKEN", "pl4nted-second")
    with open_run_directory(run, load_recipe(keys), resume=True):
        check_inputs(run, load_recipe(keys), log=messages.append)
    assert messages == []
    literal = load_recipe(
        {**keys, "environment": {"tools": [{"name": "support.leaked_secrets:Shop", "token": "pl4nted-3"}]}}
    )
    with open_run_directory(run, literal, resume=True):
        check_inputs(run, literal, log=messages.append)
    monkeypatch.setenv("TITLE_HERE", "two")
    with pytest.raises(RunDirectoryError, match=r"title \$\{TITLE_HERE\} differs"):
        check_inputs(run, load_recipe(keys), log=messages.append)


def test_a_run_of_an_earlier_release_is_shown_without_its_secrets(tmp_path):
    text = yaml.safe_dump({"environment": {"tools": [literal_options(tmp_path)]}})
    assert LITERAL["headers"] in text
    assert_absent(mask_recipe_text(text), "recipe")
    assert "application/json" in mask_recipe_text(text)


def test_a_process_that_receives_a_recipe_masks_its_secrets(planted, monkeypatch):
    options, _ = planted
    sent = pickle.dumps(load_recipe({"extends": "demo", "ablations": None, "environment": {"tools": [options]}}))
    monkeypatch.setattr("whetstone.masking._values", {})
    monkeypatch.setattr("whetstone.masking._longest_first", ())
    resolved = pickle.loads(sent)
    assert_absent(str(RecipeError(f"refused: {resolved.recipe.environment.options['tools']}")), "message")
    assert_absent(resolved.dump(), "recipe")


@pytest.mark.parametrize(
    ("path", "value", "masked"),
    [
        ("environment.tools.0.headers.Authorization", "Bearer abc", "Bearer [x]"),
        ("environment.tools.0.headers.X-Api-Key", "k", "[x]"),
        ("environment.tools.0.headers.Content-Type", "application/json; v=2", "application/json; v=2"),
        ("environment.variables.BACKEND", "b4ckend-credential", "[x]"),
        ("environment.variables.LEVEL", "easy", "easy"),
        ("environment.name", "my_module:Shop1Environment", "my_module:Shop1Environment"),
        ("stages.0.environment.name", "my_module:Shop1Environment", "my_module:Shop1Environment"),
        ("stages.0.engine.environment.HF_TOKEN", "abc", "[x]"),
        ("chat.variables.reasoning", "b4ckend-credential", "b4ckend-credential"),
        ("models.judge.api_key_env", "OPENAI_API_KEY", "OPENAI_API_KEY"),
        ("policy.eos_token", "<|im_end|>", "<|im_end|>"),
        ("environment.effects.reset_password", "write", "write"),
        ("stages.0.environment.effects.rotate_api_key", "destructive", "destructive"),
        ("reward.terms.secret", "my_module:found_secret", "my_module:found_secret"),
        ("reward.terms.secret.api_key", "k", "[x]"),
        ("environment.tools.0.api_key", "write", "[x]"),
        ("models.judge.url", "https://ann:pass@host/v1?key=k3y&n=1", "https://ann:[x]@host/v1?key=[x]&n=1"),
        ("environment.tools.0.url", "postgresql://ann:pw@host:5432/db", "postgresql://ann:[x]@host:5432/db"),
        ("environment.tools.0.url", "postgresql://ann:${PW}@host/db", "postgresql://ann:${PW}@host/db"),
        ("title", "Compute 1=2 with key: none", "Compute 1=2 with key: none"),
        ("reward.prompt", "use sk-ant-abcdefghijklmnopqrstuvwx now", "use [x] now"),
    ],
)
def test_secrets_are_found_by_key_and_by_form(path, value, masked):
    for start, end in reversed(secret_spans(path.split("."), value)):
        value = f"{value[:start]}[x]{value[end:]}"
    assert value == masked
