"""Metrics, options and result words of earlier releases are converted when read and refused when typed."""

import importlib
import importlib.util
import json
import tomllib
from importlib.resources import files

import pytest

from claims.measures import measure_from, upgrade_result
from whetstone import renames
from whetstone.analysis.offline_advice import held_out_evaluations
from whetstone.cli import main as command
from whetstone.errors import RecipeError
from whetstone.plugins import OptionError, check_interface, validate_options
from whetstone.recipe import SupervisedSettings, UntilSettings
from whetstone.recipe.upgrade import upgrade_recipe
from whetstone.renamed_modules import RenamedModules, renamed_module
from whetstone.renames import renamed_metric, upgrade_metrics
from whetstone.reporting import Journal, learning_rows
from whetstone.reporting.metric_names import METRICS, lookup_metric
from whetstone.rewards import REWARDS
from whetstone.rollout import STRATEGIES
from whetstone.rollout.context_transforms import CONTEXT_TRANSFORMS
from whetstone.rollout.protocol import ContextTransform
from whetstone.training.stopping import stopping_reason
from whetstone.viewer.metric_series import MetricRows


@pytest.mark.parametrize(("old", "new"), sorted(renames.METRICS.items()))
def test_new_metric_is_in_the_table_and_the_old_one_is_not(old, new):
    assert lookup_metric(new) is not None
    assert old not in {row.name for row in METRICS}
    assert renamed_metric(old) == new
    assert renamed_metric(new) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("filter/void_turns_removed_fraction", "credit_filters/void_turns_removed_fraction"),
        ("stored/groups", "offline/groups"),
        ("stored/loss", "offline/loss/total"),
        ("stored/update/gradient_norm", "offline/update/grad_norm"),
        ("second_pass/loss", "second_pass/loss/total"),
        ("second_pass/update/tokens", None),
        ("smoothness/policy", "consistency/policy"),
        ("process_model/loss", "implicit_prm/loss"),
        ("reward/mean", None),
    ],
)
def test_prefix_and_rest_of_a_metric_are_renamed(old, new):
    assert renamed_metric(old) == new
    assert lookup_metric(new or old) is not None


def test_new_name_wins_in_a_row_with_both():
    row = {"stage": "offline", "step": 1, "loss": 1.0, "loss/total": 2.0, "mine/loss": 3.0}
    assert upgrade_metrics(row) == {"stage": "offline", "step": 1, "loss/total": 2.0, "mine/loss": 3.0}


@pytest.fixture(name="old_run")
def _old_run(tmp_path):
    rows = [
        {"stage": "supervised", "step": step, "loss": loss, "update/skipped": 0.0, "filter/a_removed_fraction": 0.5}
        for step, loss in enumerate([4.0, 3.0, 3.0, 3.0], start=1)
    ]
    rows += [{"stage": "reinforcement", "step": 1, "credit/zero_fraction": 0.75, "filter/a_removed_fraction": 0.5}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_every_reader_finds_the_rows_of_an_earlier_release(old_run):
    rows = Journal(old_run).read()
    viewed = MetricRows(old_run)
    viewed.refresh()
    assert viewed.rows == rows
    assert [row["loss/total"] for row in rows[:4]] == [4.0, 3.0, 3.0, 3.0]
    assert all("loss" not in row and "update/skipped" not in row for row in rows)
    (learned,) = learning_rows(rows)
    assert (learned["no credit"], learned["out by a"]) == (0.75, 0.5)


def test_resumed_run_continues_its_plateau(old_run):
    settings = SupervisedSettings(steps=9, until=UntilSettings(plateau=2, window=1, min_delta=0.1))
    journal = Journal(old_run)
    assert stopping_reason(journal.read(), "supervised", settings) == "plateau: loss 3, no better by 0.1 in 2 steps"
    journal.truncate_rows({"supervised": 3})
    assert stopping_reason(journal.read(), "supervised", settings) is None
    journal.record("supervised", 4, {"loss/total": 2.95})
    assert stopping_reason(journal.read(), "supervised", settings) == "plateau: loss 3, no better by 0.1 in 2 steps"
    assert '"loss"' not in (old_run / "metrics.jsonl").read_text()


def test_offline_advice_reads_old_rows():
    old = {"stage": "offline", "step": 1, "loss": 2.0, "held_out/loss": 3.0, "held_out/divergence": 0.5}
    (look,) = held_out_evaluations([upgrade_metrics(old)])
    assert (look.train, look.held_out, look.kl) == (2.0, 3.0, 0.5)


def test_measure_with_an_old_metric_is_refused():
    with pytest.raises(RecipeError, match=r"^measure: metric: update/gradient_norm: renamed to update/grad_norm$"):
        measure_from({"metric": "update/gradient_norm", "over": "max"})


def test_stored_result_of_a_bench_is_converted():
    measure = [{"metric": "update/gradient_norm", "over": "max"}, "success"]
    measures = {"success": 1.0, "update/gradient_norm (max)": 2.0}
    result = {
        "contenders": [{"name": "a", "runs": [{"measures": measures}, {"failed": "x"}]}],
        "claims": [{"measure": measure, "parts": [{"measure": "update/gradient_norm (max)"}]}],
    }
    upgraded = upgrade_result(result)
    assert upgraded["contenders"][0]["runs"][0]["measures"] == {"success": 1.0, "update/grad_norm (max)": 2.0}
    assert upgraded["claims"][0]["measure"] == [{"metric": "update/grad_norm", "over": "max"}, "success"]
    assert upgraded["claims"][0]["parts"][0]["measure"] == "update/grad_norm (max)"
    assert upgrade_result(upgraded) == upgraded


@pytest.mark.parametrize(
    ("component", "options", "message"),
    [
        (
            STRATEGIES["entropy_branching"],
            {"measured": "behind"},
            " ".join(["measured:", "behind:", "renamed to after_tool"]),
        ),
        (STRATEGIES["balanced_branching"], {"measured": "before"}, "measured: before: renamed to before_tool"),
        (REWARDS["tool_rl"], {"grain": "call"}, "grain: renamed to match"),
        (REWARDS["tool_rl"], {"match": "fine"}, "match: fine: renamed to parameters"),
    ],
)
def test_old_option_or_value_of_a_component_is_refused(component, options, message):
    with pytest.raises(OptionError) as raised:
        validate_options(component, {"group_size": 4, **options} if component in STRATEGIES.values() else options)
    assert str(raised.value) == message


def test_stored_option_values_are_converted():
    stored = {
        "rollout": {"strategy": {"name": "entropy_branching", "measured": "before"}},
        "reward": {"name": "composed", "terms": {"a": {"reward": {"name": "tool_rl", "grain": "fine"}}}},
    }
    assert upgrade_recipe(stored) == {
        "rollout": {"strategy": {"name": "entropy_branching", "measured": "before_tool"}},
        "reward": {"name": "composed", "terms": {"a": {"reward": {"name": "tool_rl", "match": "parameters"}}}},
    }


def test_context_transform_with_the_old_attribute_is_refused():
    class Old:
        loss = "same"

    with pytest.raises(RecipeError, match=r'^context transform "m:Old": loss: renamed to trained_on$'):
        check_interface(Old(), ContextTransform, "context transform", "m:Old")
    assert not any(hasattr(transform, "loss") for transform in CONTEXT_TRANSFORMS.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "x", "--requests-a-minute", "3"], "--requests-a-minute: renamed to --requests-per-minute"),
        (["serve", "x", "--tokens-a-minute", "3"], "--tokens-a-minute: renamed to --tokens-per-minute"),
        (["serve", "x", "--at-once", "3"], "--at-once: renamed to --max-concurrent"),
        (["serve", "x", "--most-bytes", "3"], "--most-bytes: renamed to --max-bytes"),
        (["serve", "x", "--people", "f"], "--people: renamed to --annotations"),
        (["environments", "serve", "x", "--address", "::1"], "--address: renamed to --host"),
        (["papers", "--row", "x"], "--row: renamed to --paper"),
        (["logs", "a", "b"], "logs: renamed to compare-logs"),
        (["data", "from-run", "x"], "data from-run: renamed to data export"),
    ],
)
def test_old_command_or_option_is_one_line_and_exit_code_2(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr("sys.argv", ["whetstone", *arguments])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


_TABLES = tomllib.loads((files("whetstone") / "renamed_modules.toml").read_text("utf-8"))
MODULES = _TABLES["modules"]
EXPORTS = [(package, old, new) for package, names in _TABLES["exports"].items() for old, new in names.items()]


@pytest.mark.parametrize(("old", "new"), sorted(MODULES.items()))
def test_old_module_is_refused_with_the_new_name_which_exists(old, new):
    assert importlib.util.find_spec(f"whetstone.{new}") is not None
    assert renamed_module(f"whetstone.{new}") is None
    with pytest.raises(ModuleNotFoundError, match=f"renamed to 'whetstone.{new}'"):
        RenamedModules().find_spec(f"whetstone.{old}", None)


def test_import_of_a_renamed_module_gives_the_new_name():
    with pytest.raises(ModuleNotFoundError) as failure:
        importlib.import_module(f"whetstone.{'causes'}")
    assert str(failure.value) == f"No module named 'whetstone.{'causes'}': it was renamed to 'whetstone.failure_causes'"


def test_module_in_a_renamed_package_has_a_new_name():
    package = f"whetstone.{'rewards'}.judged"
    assert renamed_module(f"{package}.material") == "whetstone.rewards.judge_rewards.judge_input"
    assert renamed_module(f"{package}.unknown") == "whetstone.rewards.judge_rewards.unknown"
    assert renamed_module("other.rewards.judged") is None


def test_stored_recipe_with_a_function_of_a_renamed_module_is_converted():
    stored = {
        "reward": {
            "name": f"whetstone.{'rewards'}.worlds.verdict:verdict",
            "note": "whetstone. a text: stays",
        }
    }
    assert upgrade_recipe(stored)["reward"] == {
        "name": "whetstone.rewards.environment_state.environment_outcome:verdict", "note": "whetstone. a text: stays",
    }  # fmt: skip


@pytest.mark.parametrize(("package", "old", "new"), EXPORTS)
def test_old_export_is_the_new_one_with_a_warning(package, old, new):
    module = importlib.import_module(f"whetstone.{package}")
    with pytest.warns(DeprecationWarning, match=f"whetstone.{package}.{old} was renamed to whetstone.{package}.{new}$"):
        assert getattr(module, old) is getattr(module, new)


def test_name_that_was_never_exported_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'comparess'"):
        importlib.import_module("whetstone.rewards").comparess  # noqa: B018
