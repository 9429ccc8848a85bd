"""One table lists every metric: each written metric is in it, and each of its rows is written."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import whetstone
from support.small import SMALL
from support.trackers import evaluation
from whetstone.recipe import load_recipe
from whetstone.reporting import Journal, Progress
from whetstone.reporting.metric_names import METRICS, PARTS, TRACKED, lookup_metric
from whetstone.reporting.trackers.dispatcher import evaluation_metrics
from whetstone.rollout import MethodComponents
from whetstone.training import train

SOURCE = Path(whetstone.__file__).parent
ROWS = (*METRICS, *TRACKED)
AREAS = {row.name.partition("/")[0] for row in METRICS} - {"loss", "PART"} | {"loss"}
ROOMS = ("algorithms", "learning", "training", "record", "rewards", "rollout", "serving", "inference", "assembly")
NOT_METRICS = {"tools/list", "tools/call"}
LATER = {"importance/weight_squared", "consistency/apart"}
"""Made and used up before a step is written."""


def words():
    """Return text constants, keywords and f-string pieces of the source, without those of the table."""
    texts = []
    for path in SOURCE.rglob("*.py"):
        if path.name == "metric_names.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append((path, node.value))
            elif isinstance(node, ast.keyword) and node.arg:
                texts.append((path, node.arg))
    return texts


def test_each_name_is_listed_once_with_its_meaning():
    counted = Counter(row.name for row in ROWS)
    assert [name for name, count in counted.items() if count > 1] == []
    for row in ROWS:
        assert re.fullmatch(r"[A-Za-z_]+(/[A-Za-z_]+)*", row.name)
        assert row.meaning.endswith((".", "…")), row.name
        assert row.when


@pytest.mark.slow
def test_every_name_in_the_source_is_listed():
    written = {
        text
        for path, text in words()
        if path.relative_to(SOURCE).parts[0] in ROOMS
        and re.fullmatch(r"[a-z_]+/[a-z_]+", text)
        and text.partition("/")[0] in AREAS
    }
    assert {name for name in written - NOT_METRICS - LATER if lookup_metric(name) is None} == set()


@pytest.mark.slow
def test_every_listed_name_is_in_the_source():
    known = {text for _, text in words()}
    dead = []
    for row in ROWS:
        last = row.name.rpartition("/")[2]
        pieces = [piece for piece in re.split(r"/|[A-Z]+", row.name) if piece]
        patterned = last != last.lower() and all(any(piece in text for text in known) for piece in pieces)
        alive = row.name in known or last in known or patterned
        if not alive:
            dead.append(row.name)
    assert dead == []


def test_component_placeholders_are_fields_of_methods():
    keys = {"curriculum", "allocate", "start", "environment_wrapper", "action_mask", "dynamic_sampling", "sources"}
    keys |= {"reward", "context_transforms", "stops", "rewrites", "replay", "trajectory_filters"}
    assert set(PARTS) == keys
    assert keys <= set(MethodComponents.__dataclass_fields__)


def test_most_specific_row_matches_a_name():
    assert lookup_metric("reward/mean").name == "reward/mean"
    assert lookup_metric("reward/turn_cost").name == "reward/NAME"
    assert lookup_metric("credit_filters/void_turns_removed_fraction").name == "credit_filters/NAME_removed_fraction"
    assert lookup_metric("replay/success_replay/stored").name == "PART/NAME"
    assert lookup_metric("replay/injected").name == "replay/injected"
    assert lookup_metric("evaluation/pass_at_8").name == "evaluation/pass_at_K"
    assert lookup_metric("reinforcement/step").name == "STAGE/step"
    assert lookup_metric("policy/no_such") is None
    assert lookup_metric("evaluation/pass_at_all") is None


def test_evaluation_metrics_of_trackers_are_listed():
    metrics = evaluation_metrics({**evaluation(0.5), "well_formed_calls": 1.0, "pass_at": {"1": 0.5, "2": 0.75}})
    assert "evaluation/pass_at_2" in metrics
    assert [name for name in metrics if lookup_metric(name) is None] == []


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["with=gigpo", "advantage=token_gae", "critic={ensemble_size: 2}"],
        [
            "importance_correction=truncated",
            "reinforcement.reference_kl=0.1",
            "reinforcement.imitation={batch_size: 2}",
        ],
        ["with=success-replay", "reinforcement.consistency_regularization={}"],
    ],
)
def test_metrics_of_a_small_run_are_listed(tmp_path, changes):
    train(load_recipe("demo", [*SMALL, "ablations=null", *changes]), tmp_path / "run", progress=Progress(quiet=True))
    names = {name for row in Journal(tmp_path / "run").read() for name in row} - {"stage", "step"}
    assert len(names) > 40
    assert {name for name in names if lookup_metric(name) is None} == set()
