"""The report of a run agrees with its metrics, makes no further claim, and is self-contained."""

import json
import re

import pytest

from whetstone.chat import assistant, tool_result, user
from whetstone.errors import RunDirectoryError
from whetstone.reporting import Journal, charts, write_report, write_trajectories
from whetstone.reporting.report import ablation_sentence, kind_note
from whetstone.trajectory import Author, EndReason, Score, Tokens, Trajectory, Turn

pytestmark = pytest.mark.usefixtures("rendered")

NOTHING = Tokens.from_ids((), Author.ENVIRONMENT)


def result(success, low, high, **more):
    rates = {"product": {"episodes": 500, "success": success, "interval": [low, high]}}
    return {
        "episodes": 500, "success": success, "interval": [low, high], "kinds": rates, "turns": 2.0, "tool_calls": 1.0,
        "action_tokens": 30.0, "well_formed_calls": 0.9, "ended": {"terminated": 1.0}, "parts": {}, "pass_at": {},
        "temperature": 0.0, "invalid": 0, **more,
    }  # fmt: skip


UNTRAINED = result(0.0, 0.0, 0.01, well_formed_calls=None)
BAD, GOOD = result(0.4, 0.36, 0.44), result(0.97, 0.95, 0.98)


def episode(task, text, success):
    turn = Turn(NOTHING, NOTHING, assistant("so"), (tool_result("<script>alert(1)</script>"),))
    turns = (turn, Turn(NOTHING, NOTHING, assistant(text)))
    return Trajectory(
        task, task, (user("?"),), turns, EndReason.TERMINATED, score=Score(float(success), success=success)
    )


def run_directory(path, after=GOOD, ablations=None, metrics=True):
    summary = {
        "recipe": "demo", "title": "A <b>title</b>", "seed": 0,
        "evaluations": {"untrained": UNTRAINED, "supervised": BAD, "reinforcement": after},
        "ablations": ablations or {}, "seconds": {"supervised": 30.0, "reinforcement": 90.0},
        "throughput": {"reinforcement": 2500.0}, "parameters": 467712, "policy": "tiny",
    }  # fmt: skip
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "recipe.yaml").write_text("title: x\n")
    if metrics:
        for step in range(1, 6):
            Journal(path).record("supervised", step, {"loss/supervised": 1.0 / step})
            values = {"episode/success": step / 5, "success/product": step / 5, "sampler/mismatch_kl": 1e-12}
            Journal(path).record("reinforcement", step, values)
    for name, solved in (("supervised", False), ("reinforcement", True)):
        tasks = [f"arithmetic/{'*' * kind}{n}" for kind in range(4) for n in range(3)]
        episodes = [episode(task, f"answer {name}", solved) for task in tasks]
        write_trajectories(path / "trajectories" / f"evaluation-{name}.jsonl", episodes)
    return path


def test_report_has_stages_intervals_kinds_and_three_pairs(tmp_path):
    page = write_report(run_directory(tmp_path)).read_text()
    for text in ("0.0 %", "40.0 %", "97.0 %", "95.0 to 98.0 %", "500 held-out tasks", "2.0 minutes", "learned"):
        assert text in page
    assert page.count("answer supervised") == page.count("answer reinforcement") == 3
    assert len(set(re.findall(r"<h3>(.*?)</h3>", page))) == 3
    assert page.count("<svg") >= 4


def test_untrusted_text_is_escaped_and_nothing_is_fetched(tmp_path):
    page = write_report(run_directory(tmp_path)).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "A &lt;b&gt;title" in page
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert all(
        a.startswith(("http://www.w3.org/", "http://purl.org/", "http://creativecommons.org/")) for a in addresses
    )
    assert not re.search(r"\b(src|href)=\"(?!#)", page)


def test_run_without_metrics_or_trajectories_has_a_report(tmp_path):
    run_directory(tmp_path, metrics=False)
    for path in (tmp_path / "trajectories").iterdir():
        path.unlink()
    assert "97.0 %" in write_report(tmp_path).read_text()


def test_run_whose_last_stage_lost_success_has_no_check_mark(tmp_path):
    page = write_report(run_directory(tmp_path, after=result(0.3, 0.27, 0.33))).read_text()
    assert "reinforcement: 40 → 30 %, worse than its start" in page
    assert re.search(r'<p class="wrong">▼ reinforcement', page)
    assert re.search(r'<p class="right">✓ supervised: 0 → 40 %, better than its start', page)
    assert page.count("✓") == 1


def test_the_report_lists_the_alarms_at_the_end_and_those_of_earlier_steps(tmp_path):
    run_directory(tmp_path, metrics=False)
    for step in range(1, 5):
        row = {"group/zero_variance_fraction": 1.0, "episode/success": 0.0} | (
            {"alarm/full_contexts": 1.0} if step < 3 else {}
        )
        Journal(tmp_path).record("reinforcement", step, row)
    page = write_report(tmp_path).read_text()
    assert "<strong>Alarm, all groups wrong:</strong>" in page
    assert "Alarm during the run: full contexts, steps 1 to 2." in page


def test_gain_is_attributed_to_the_tool_only_if_the_numbers_support_it():
    little = {"after": result(0.05, 0.03, 0.07)}
    assert "the difference is due to the tool" in ablation_sentence("without_tool", little, GOOD)
    assert "not clearly less" in ablation_sentence("without_tool", {"after": GOOD}, GOOD)
    assert "without the tool, solves 5.0 % (95 % interval 3.0 to 7.0 %)" in ablation_sentence(
        "without_tool", little, GOOD
    )


@pytest.mark.parametrize(
    ("before", "after", "note"),
    [
        (result(0, 0, 0.01), GOOD, "never solved before, learned"),
        (BAD, GOOD, "learned"),
        (GOOD, GOOD, "solved before"),
        (BAD, result(0, 0, 0.01), "worse than before"),
        (result(0, 0, 0.01), result(0, 0, 0.01), "never solved"),
        (GOOD, BAD, "worse than before"),
        (BAD, BAD, "no clear change: the interval of the difference includes 0"),
    ],
)
def test_each_kind_is_described_in_words(before, after, note):
    assert kind_note([("supervised", before), ("reinforcement", after)]) == note


def test_directory_without_a_finished_run_is_one_line(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"summary\.json is missing"):
        write_report(tmp_path)


def test_difference_is_colored_if_its_interval_excludes_zero(rendered):
    drawn = charts.plot_differences([(-3.0, -2.0, -1.0), (-1.0, 2.0, 5.0), (1.0, 200.0, 300.0)], x_label="points")
    lines = re.findall(r"stroke: (#[0-9a-f]{6}); stroke-linecap: square", drawn)
    assert [lines.count(charts.COLORS[0]), lines.count(charts.COLORS[1])] == [2, 0]


@pytest.mark.parametrize("values", [(-0.00005, -0.000175), (123456.0, -987654.0), (0.2, 0.9), (1e-12, 3e-12)], ids=str)
def test_numbers_next_to_a_curve_fit_into_its_margin(values):
    drawn = charts.plot_curves({"x": ([1.0, 2.0], values)}, x_label="step")
    labels = re.findall(r">([−\d.]+)</text>", drawn)
    assert len(labels) >= 4
    assert max(map(len, labels)) <= 7
