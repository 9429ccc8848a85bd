"""Pages of the documentation agree with docstrings and registries."""

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest
from docstring_parser import parse

from whetstone.algorithms import ADVANTAGE_TRANSFORMS, ADVANTAGES, CORRECTIONS, CREDIT_FILTERS, OBJECTIVES, SHAPING
from whetstone.analysis.paper_verdicts import load_papers
from whetstone.chat import FORMATS
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.recipe.loader import built_in_methods
from whetstone.rewards import REWARDS
from whetstone.rewards.judges import JUDGES
from whetstone.rollout import SEARCHES
from whetstone.rollout.action_masks import ACTION_MASKS
from whetstone.rollout.budget_allocation import ALLOCATIONS
from whetstone.rollout.context_rewrites import REWRITES
from whetstone.rollout.context_transforms import CONTEXT_TRANSFORMS
from whetstone.rollout.dynamic_sampling import DYNAMIC_SAMPLING
from whetstone.rollout.early_stopping import STOPS
from whetstone.rollout.environment_wrappers import ENVIRONMENT_WRAPPERS
from whetstone.rollout.replay import REPLAY
from whetstone.rollout.start_states import STARTS
from whetstone.rollout.strategies import STRATEGIES
from whetstone.rollout.trajectory_filters import TRAJECTORY_FILTERS
from whetstone.tasks.curricula import CURRICULA
from whetstone.tools import TOOLS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "methods.md").read_text()
ROLLOUT = (ROOT / "docs" / "reference" / "rollout.md").read_text()
REWARDS_PAGE = (ROOT / "docs" / "reference" / "rewards.md").read_text()


def test_every_method_is_on_its_page():
    for functions in (ADVANTAGES, CORRECTIONS, CREDIT_FILTERS, ADVANTAGE_TRANSFORMS, OBJECTIVES, SHAPING):
        for name in functions:
            assert f"### `{name}`" in PAGE


def test_every_component_of_the_primitives_is_on_the_other_page():
    for parts in (
        *(ALLOCATIONS, CURRICULA, REPLAY, ENVIRONMENT_WRAPPERS, DYNAMIC_SAMPLING, REWRITES),
        *(TRAJECTORY_FILTERS, STARTS, STOPS, STRATEGIES, CONTEXT_TRANSFORMS, ACTION_MASKS),
    ):
        assert parts
        for name in parts:
            assert f"### `{name}`" in ROLLOUT


def test_every_tool_and_format_is_on_a_page():
    page = (ROOT / "docs" / "reference" / "tools.md").read_text()
    for name in (*TOOLS, *FORMATS):
        assert f"### `{name}`" in page


def test_table_names_existing_components():
    table = PAGE.partition("## Which estimator?")[2].partition("The six pieces")[0]
    known = {*ADVANTAGES, *OBJECTIVES}
    named = {word for word in table.replace("`", " ` ").split() if word.replace("_", "").isalnum() and "_" in word}
    assert named <= known, named - known


def test_every_reward_is_on_its_page_with_a_description():
    for parts in (REWARDS, JUDGES, SEARCHES):
        for name in parts:
            assert f"### `{name}`" in REWARDS_PAGE
    for name, part in REWARDS.items():
        options = [key for key, p in inspect.signature(part).parameters.items() if p.kind is p.KEYWORD_ONLY]
        documented = {p.arg_name for p in parse(inspect.getdoc(part)).params}
        assert set(options) <= documented, f"{name}: {set(options) - documented}"


def test_compatibility_table_is_the_measured_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "make")
    page = importlib.import_module("compatibility_page")
    written = (ROOT / "docs" / "reference" / "compatibility.md").read_text()
    assert written == page.compatibility_page()
    bfcl = json.loads((ROOT / "benchmarks" / "results" / "raw" / "bfcl.json").read_text())
    assert f"bfcl-eval {bfcl['versions']['bfcl-eval']}" in written
    for one in bfcl["measured"]:
        assert f"| {one['category']} | {one['tasks']} | {one['gold_agreed']} |" in written
    models = [{"kind": kind, "outcome": outcome} for kind, outcome in (("b", "exact"), ("a", "exact"), ("c", "wrong"))]
    (tmp_path / "architectures.json").write_text(json.dumps({"models": models, "transformers": "5.0"}))
    served = [{"server": "openenv", "works": True, "said": "a | b"}, {"server": "other", "works": False}]
    (tmp_path / "servers.json").write_text(json.dumps({"measured": served}))
    other = page.compatibility_page(tmp_path)
    assert "with transformers 5.0.\n\n| outcome" in other
    assert "| exact | 2 | a, b |\n| wrong | 1 | c |" in other
    assert "| openenv | yes | a \\| b |\n| other | no |  |" in other
    assert "with versions that were not recorded" in other
    for name in ("templates", "bfcl", "tau2"):
        assert f"Not measured: `python -m benchmarks {name}`" in other


def anchors_of(page):
    """Return the anchors of the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


TOP_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")]
PAGES = sorted([*(ROOT / "docs").glob("*/*.md"), ROOT / "docs" / "llms.txt", *TOP_PAGES])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_has_a_target(page):
    text = re.sub(r"```.*?```|`[^`\n]*`(?!\])", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        aim = (page.parent / path).resolve() if path else page
        assert aim.exists(), link
        if anchor:
            assert anchor in anchors_of(aim), link


def test_the_index_for_language_models_lists_every_page():
    listed = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "docs" / "llms.txt").read_text())
    assert sorted(listed) == sorted(f"{page.parent.name}/{page.name}" for page in (ROOT / "docs").glob("*/*.md"))


def test_the_instructions_for_agents_name_files_that_exist():
    page = (ROOT / "AGENTS.md").read_text()
    files = re.findall(r"`((?:src|tests)/[\w/.]+)`", page)
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert len(files) > 12


def test_every_decision_is_a_heading_of_the_page_of_design():
    decided = {paper.decision for paper in load_papers().values() if paper.decision is not None}
    assert decided <= anchors_of(ROOT / "docs" / "guide" / "design.md")
    assert len(decided) == 9


KEY = re.compile(r"`((?:reinforcement|rollout|environment|evaluation|policy|chat|critic)\.(?!json)[a-z_.]+)")


def test_page_on_reading_a_run_names_existing_keys_metrics_and_methods():
    text = (ROOT / "docs" / "guide" / "reading-a-run.md").read_text()
    for key in KEY.findall(text):
        with pytest.raises(RecipeError) as refused:  # a mapping is no value of any of these keys
            load_recipe("demo", [f"{key}={{nothing: of, this: kind}}"])
        assert "no such key" not in str(refused.value) or "nothing" in str(refused.value), str(refused.value)
    assert set(re.findall(r"`with=([a-z0-9-]+)", text)) <= set(built_in_methods())
    written = " ".join(path.read_text() for path in (ROOT / "src" / "whetstone").rglob("*.py"))
    for area, name in re.findall(r"`([a-z]+)/([a-z_]+)`", text):
        assert f"{area}/{name}" in written or f'"{area}/' in written, f"{area}/{name}"


def test_every_recipe_key_is_on_its_page_with_its_effect(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "make")
    page = importlib.import_module("keys_page")
    written = (ROOT / "docs" / "reference" / "keys.md").read_text()
    described = dict(page.keys())
    assert len(described) > 150
    assert [key for key, description in described.items() if not description] == []
    assert [key for key in described if f"| `{key}` |" not in written] == []
    assert "| `reinforcement.learning_rate` | number | `0.001` | > 0 |" in written
    assert "| `environment.timeout_seconds` | number | `300` | seconds, > 0 |" in written


def test_every_component_option_is_on_that_page_with_its_effect():
    written = (ROOT / "docs" / "reference" / "keys.md").read_text().partition("## Options of components")[2]
    rows = [line for line in written.splitlines() if line.startswith("| `")]
    assert len(rows) > 500
    assert [row for row in rows if row.endswith("|  |")] == []
    for name in ("tensorboard", "clipped", "python", "arithmetic", "frozen_lake", "ucb"):
        assert any(row.startswith(f"| `{name}` |") for row in rows), name


def test_example_of_a_tracker_is_a_tracker(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "guide" / "trackers.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "lines.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    tracker = importlib.import_module("lines").Lines(path=str(tmp_path / "told"))
    assert tracker.start(None) is None
    tracker.log(3, {"reward/mean": 0.5})
    tracker.finish(None)
    assert (tmp_path / "told").read_text() == "3 0.5\n"
