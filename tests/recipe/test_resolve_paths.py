"""Paths in a recipe are found next to it and in the working directory, and a run stores their location."""

import json
import textwrap

import pytest

from support.cli import whetstone
from whetstone.recipe import load_recipe
from whetstone.recipe.resolve_paths import resolve_paths

RECIPE = """
policy: {tiny: {vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, \
context_length: 96}}
chat: {format: compact}
tasks: {source: jsonl, path: prices.jsonl, held_out_fraction: 0.5}
environment: {tools: ["beside_tools:price"], max_turns: 2}
reward: "beside_tools:right"
rollout: {group_size: 2, max_new_tokens: 3}
reinforcement: {steps: 1, tasks_per_step: 2}
evaluation: {episodes: 2}
"""
MODULE = """
from whetstone.trajectory import Score

def price(item: str) -> int:
    "Price of an item."
    return 4

async def right(trajectory, task):
    return Score(float(len(trajectory.final_text)), success=True)
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "beside.yaml").write_text(RECIPE)
    (folder / "beside_tools.py").write_text(MODULE)
    (folder / "prices.jsonl").write_text("\n".join(json.dumps({"prompt": f"{k}?", "answer": k}) for k in range(8)))
    (tmp_path / "elsewhere").mkdir()
    return folder


@pytest.mark.slow
def test_files_and_modules_next_to_the_recipe_are_found_from_anywhere(project):
    elsewhere = project.parent / "elsewhere"
    done = whetstone("train", project / "beside.yaml", "--run-dir", "run", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    for command in (["why", elsewhere / "run"], ["evaluate", elsewhere / "run"], ["rollout", elsewhere / "run"]):
        assert whetstone(*command, cwd=project.parent).returncode == 0
    resumed = whetstone("train", "beside.yaml", "--run-dir", elsewhere / "run", "--resume", cwd=project)
    assert resumed.returncode == 0, resumed.stderr


def test_recipe_folder_precedes_the_working_directory(project, monkeypatch):
    monkeypatch.chdir(project.parent)
    (project.parent / "prices.jsonl").write_text("")
    assert load_recipe(project / "beside.yaml").recipe.tasks.options["path"] == str(project / "prices.jsonl")
    # paths of overrides are relative to the working directory
    override = load_recipe(project / "beside.yaml", ["tasks.path=prices.jsonl"])
    assert override.recipe.tasks.options["path"] == str(project.parent / "prices.jsonl")


def test_only_existing_files_and_folders_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    keys = {
        "policy": {"path": "here"}, "reward": "here", "tasks": {"path": "nowhere", "url": "https://here"},
        "rollout": {"strategy": {"name": "self_play", "frozen": {"seller": "here"}}},
        "environment": {"tools": [{"name": "sql", "url": "here"}]}, "ablations": {"a": {"tasks.path": "here"}},
    }  # fmt: skip
    absolute = str(tmp_path / "here")
    assert resolve_paths(keys, None) == {
        "policy": {"path": absolute}, "reward": "here", "tasks": {"path": "nowhere", "url": "https://here"},
        "rollout": {"strategy": {"name": "self_play", "frozen": {"seller": absolute}}},
        "environment": {"tools": [{"name": "sql", "url": absolute}]}, "ablations": {"a": {"tasks.path": absolute}},
    }  # fmt: skip


@pytest.mark.slow
def test_gymnasium_environment_in_the_working_directory_is_found(tmp_path):
    pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install -e '.[gymnasium]'")
    (tmp_path / "my_gym.py").write_text(
        textwrap.dedent("""
        import gymnasium

        class Thermostat(gymnasium.Env):
            action_space = gymnasium.spaces.Discrete(2)
            observation_space = gymnasium.spaces.Box(0, 1, (1,))

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return self.observation_space.low, {}

            def step(self, action):
                return self.observation_space.low, float(action), True, False, {}

        gymnasium.register("Thermostat-v0", entry_point=Thermostat)
    """)
    )
    printed = whetstone("tasks", "show", "gymnasium", "id=my_gym:Thermostat-v0", cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    checked = whetstone("environments", "check", "gymnasium", "id=my_gym:Thermostat-v0", "actions=text", cwd=tmp_path)
    assert "my_gym" not in checked.stderr
    missing = whetstone("environments", "check", "gymnasium", "id=no_gym:Thermostat-v0", cwd=tmp_path)
    assert missing.returncode == 2
    assert "No module named 'no_gym'" in missing.stderr
