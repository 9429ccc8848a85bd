"""A missing package of an environment is reported when the recipe is loaded, in one line with the command."""

import importlib.util
import sys

import pytest

from whetstone.assembly.environment import build_environment
from whetstone.environments import ENVIRONMENTS, dependencies
from whetstone.environments.dependencies import require_package
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe


class EnvironmentWithRequirement:
    """A custom environment."""

    needs = (require_package("no_such_package", "serve"),)

    async def reset(self, task, *, seed): ...

    async def step(self, action): ...

    async def close(self): ...


class Incomplete(EnvironmentWithRequirement):
    """An environment whose package lacks a dependency."""

    needs = ()

    def check(self):
        import no_such_package_below  # noqa: F401


REST = "policy: {tiny: {}}\nreward: exact_number\nreinforcement: {steps: 1}\n"


def loaded(tmp_path, environment):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"tasks: {{source: arithmetic}}\nenvironment: {environment}\n{REST}")
    return build_environment(load_recipe(str(path)))


OPTIONS = {
    "agent": "command: 'true'",
    "bfcl_memory": "",
    "bfcl_multi_turn": "",
    "gymnasium": "id: CartPole-v1",
    "jericho": "story: none.z5",
    "openenv": "url: 'http://127.0.0.1:1'",
    "openspiel": "id: tic_tac_toe",
    "pettingzoo": "id: classic/tictactoe-v3",
    "reasoning_gym": "",
    "scienceworld": "",
    "textarena": "id: TicTacToe-v0",
    "textworld": "",
    "verifiers_harness": "taskset: none",
}
PACKAGES = {
    "agent": "uvicorn", "bfcl_memory": "bfcl_eval", "bfcl_multi_turn": "bfcl_eval", "openenv": "websockets",
    "openspiel": "pyspiel", "verifiers_harness": "starlette",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_missing_package_is_reported_at_load(name, tmp_path, monkeypatch):
    missing, find = PACKAGES.get(name, name), importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda of, *rest: None if of == missing else find(of, *rest))
    assert dependencies.importlib.util.find_spec(missing) is None
    with pytest.raises(RecipeError, match=rf"{missing}.* not installed; install it with: (pip|uv) ") as refused:
        loaded(tmp_path, f"{{name: {name}, {OPTIONS[name]}}}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["verifiers", "verifiers_harness"])
def test_interpreter_without_verifiers_is_reported_at_load(name, tmp_path):
    if importlib.util.find_spec("verifiers") is not None:
        pytest.skip("the package verifiers is installed here")
    with pytest.raises(RecipeError, match=r"verifiers is not installed; install it with: .* -m pip install verifiers"):
        loaded(tmp_path, f"{{name: {name}, taskset: none, python: {sys.executable}}}")


def test_custom_environment_declares_its_requirements(tmp_path):
    with pytest.raises(RecipeError, match=r"recipe.yaml:2 .*no_such_package, which is not installed"):
        loaded(tmp_path, f"{{name: '{__name__}:EnvironmentWithRequirement'}}")


def test_package_with_a_missing_dependency_is_reported_in_one_line(tmp_path):
    with pytest.raises(RecipeError, match=r"recipe.yaml:2 .*not installed: No module named 'no_such_package_below'"):
        loaded(tmp_path, f"{{name: '{__name__}:Incomplete'}}")


def test_every_environment_with_a_package_is_tested():
    """A new adapter that requires a package must be in this list."""
    having = {name for name, part in ENVIRONMENTS.items() if getattr(part, "needs", ())}
    assert having <= set(OPTIONS)
