"""Stable names exist in the code, or are deprecated for two minor releases; deprecated names work with a notice.

`python tests/repository/test_stable_names.py` adds the names of this release that are not in the list.
"""

import importlib
import inspect
import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version
from pydantic import BaseModel

from support.cli import whetstone
from support.small import SMALL
from whetstone import renames
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.recipe.error_messages import find_settings_models
from whetstone.recipe.settings import Recipe
from whetstone.reporting import Journal
from whetstone.reporting.metric_names import METRICS
from whetstone.reporting.metrics import upgrade_metrics

ROOT = Path(__file__).parents[2]
LIST = ROOT / "src" / "whetstone" / "stable_names.json"
STABLE = json.loads(LIST.read_text("utf-8"))
EXPERIMENTAL = ("scale", "live")
"""Sections of a recipe without stable keys."""
RELEASE = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def recipe_keys(model: type[BaseModel] = Recipe, above: str = "") -> dict[str, None]:
    """Return the dotted keys of a settings class, without the experimental sections."""
    keys = {}
    for name, field in model.model_fields.items():
        if above or name not in EXPERIMENTAL:
            keys[f"{above}{name}"] = None
            for below in find_settings_models(field.annotation):
                keys |= recipe_keys(below, f"{above}{name}.")
    return keys


def metric_names() -> dict[str, None]:
    """Return the metrics of `metrics.jsonl`, without those of experimental sections."""
    return {row.name: None for row in METRICS if row.name.partition("/")[0] not in EXPERIMENTAL}


def find_object(dotted: str):
    """Import an object by its dotted name, such as `whetstone.environments.Environment.reset`."""
    module, *rest = dotted.split(".")
    thing = importlib.import_module(module)
    for part in rest:
        module = f"{module}.{part}"
        thing = getattr(thing, part) if hasattr(thing, part) else importlib.import_module(module)
    return thing


def test_every_stable_recipe_key_and_metric_is_in_the_code_or_deprecated():
    for kind, names, deprecated in (
        ("recipe_keys", recipe_keys(), renames.DEPRECATED_KEYS),
        ("metrics", metric_names(), renames.DEPRECATED_METRICS),
    ):
        missing = {name for name in STABLE[kind] if name not in names}
        lost = {
            name for name in missing if name not in deprecated or not renames.is_deprecation_active(deprecated[name])
        }
        assert not lost, f"{kind}: removed or renamed without a deprecation: {sorted(lost)}"


def test_every_stable_object_of_python_can_be_imported_with_its_parameters():
    for dotted, parameters in STABLE["python"].items():
        thing = find_object(dotted)
        if parameters:
            assert set(parameters) <= set(inspect.signature(thing).parameters), dotted


def test_names_are_stable_since_a_release_that_exists():
    for kind, names in STABLE.items():
        if kind in ("recipe_keys", "metrics", "run_files", "summary_fields"):
            assert all(Version("0.3.0") <= Version(since) <= Version(RELEASE) for since in names.values()), kind
    assert len(STABLE["recipe_keys"]) > 200
    assert len(STABLE["metrics"]) > 100


@pytest.mark.slow
def test_every_stable_file_and_field_is_in_a_run(tmp_path):
    done = whetstone("train", "demo", *SMALL, "ablations=null", "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    for pattern in STABLE["run_files"]:
        assert list((tmp_path / "run").glob(re.sub("N{6}", "[0-9]" * 6, pattern).rstrip("/"))), pattern
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for dotted in STABLE["summary_fields"]:
        value = summary
        for part in dotted.split("."):
            value = value[0] if isinstance(value, list) else value
            assert part in value, dotted
            value = value[part]


@pytest.fixture
def renamed(monkeypatch):
    """Rename keys and a metric, as the next release would."""
    keys = {"rollout.temp": "rollout.temperature", "STAGE.rate": "STAGE.learning_rate", "warmth": "rollout.top_p"}
    monkeypatch.setattr(renames, "RECIPE_KEYS", {**renames.RECIPE_KEYS, **keys})
    monkeypatch.setattr("whetstone.recipe.upgrade.RECIPE_KEYS", {**renames.RECIPE_KEYS, **keys})
    deprecated = dict.fromkeys(keys, "0.3.0")
    monkeypatch.setattr(renames, "DEPRECATED_KEYS", deprecated)
    monkeypatch.setattr("whetstone.recipe.upgrade.DEPRECATED_KEYS", deprecated)
    monkeypatch.setattr(renames, "METRICS", {**renames.METRICS, "reward/average": "reward/mean"})
    monkeypatch.setattr(renames, "DEPRECATED_METRICS", {"reward/average": "0.3.0"})
    renames.renamed_metric.cache_clear()
    yield
    renames.renamed_metric.cache_clear()


def release_is(monkeypatch, version):
    monkeypatch.setattr(renames, "get_package_version", lambda: version)


def test_deprecated_key_has_its_effect_with_a_notice_for_two_minor_releases(renamed, monkeypatch, tmp_path):
    file = tmp_path / "old.yaml"
    file.write_text("extends: demo\nrollout:\n  temp: 0.5\nreinforcement: {rate: 1.0e-4}\n")
    for version in ("0.3.0", "0.3.7", "0.4.2"):
        release_is(monkeypatch, version)
        resolved = load_recipe(file)
        assert resolved.recipe.rollout.temperature == 0.5
        assert resolved.recipe.reinforcement.learning_rate == 1e-4
        assert resolved.notes[:2] == (
            "old.yaml:3  rollout.temp: renamed to rollout.temperature; the old name works until 0.5.0",
            "old.yaml:4  reinforcement.rate: renamed to reinforcement.learning_rate; the old name works until 0.5.0",
        )
        assert load_recipe(file, ["rollout.temperature=0.7"]).recipe.rollout.temperature == 0.7
        assert load_recipe(file, ["rollout.temp=0.8"]).recipe.rollout.temperature == 0.8
        changed = resolved.with_changes({"rollout.temp": 0.9, "reinforcement": {"rate": 2e-4}})
        assert (changed.recipe.rollout.temperature, changed.recipe.reinforcement.learning_rate) == (0.9, 2e-4)
        assert load_recipe({"extends": "demo", "rollout": {"temp": 0.6}}).recipe.rollout.temperature == 0.6
        assert load_recipe({"extends": "demo", "warmth": 0.6}).recipe.rollout.top_p == 0.6
    for version in ("0.5.0", "1.0.0"):
        release_is(monkeypatch, version)
        with pytest.raises(RecipeError, match=r"old.yaml:3  rollout.temp: renamed to rollout.temperature$"):
            load_recipe(file)


def test_key_under_both_names_is_refused(renamed, monkeypatch, tmp_path):
    release_is(monkeypatch, "0.4.0")
    file = tmp_path / "both.yaml"
    file.write_text("extends: demo\nrollout:\n  temp: 0.5\n  temperature: 0.6\n")
    message = r"both.yaml:3  rollout.temp: renamed to rollout.temperature, which is set too; remove rollout.temp$"
    with pytest.raises(RecipeError, match=message):
        load_recipe(file)


def test_deprecated_metric_is_written_under_both_names_and_read_under_the_new_one(renamed, monkeypatch, tmp_path):
    for number, (version, is_written) in enumerate({"0.4.0": True, "0.5.0": False}.items()):
        release_is(monkeypatch, version)
        folder = tmp_path / str(number)
        folder.mkdir()
        seen = []
        Journal(folder, listeners=[seen.append]).record("reinforcement", 1, {"reward/mean": 0.5})
        row = json.loads((folder / "metrics.jsonl").read_text())
        assert row == seen[0]
        assert ("reward/average" in row) == is_written
        assert Journal(folder).read() == [{"stage": "reinforcement", "step": 1, "reward/mean": 0.5}]
        assert upgrade_metrics({"reward/average": 1.0}) == {"reward/mean": 1.0}


if __name__ == "__main__":
    for kind, names in (("recipe_keys", recipe_keys()), ("metrics", metric_names())):
        STABLE[kind] = {name: STABLE[kind].get(name, RELEASE) for name in [*STABLE[kind], *names]}
    LIST.write_text(json.dumps(STABLE, indent=1) + "\n", "utf-8")
