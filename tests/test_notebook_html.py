"""HTML views of a trajectory, a group and a run in a notebook: complete, and text only."""

from html.parser import HTMLParser

import pytest

from support.small import SMALL
from whetstone.chat import ToolCall, assistant, user
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.trajectory import EndReason, Group, Score, Task, Trajectory

ODD = "<script>alert(1)</script>"


class Reading(HTMLParser):
    """Collect open tags and all text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.said = [], set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in ("br", "path", "use"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("br", "path", "use"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.said += data


def episode(name, value=0.5):
    return Trajectory(
        id=name,
        task_id=f"task {ODD}",
        opening=(user(f"What is 2 + 3? {ODD}"), assistant("Let me see.", ToolCall("add", f'{{"a": "{ODD}"}}'))),
        turns=(),
        ended=EndReason.ERROR,
        error=ODD,
        score=Score(value, parts={"correct": value}),
    )


def test_trajectory_shows_its_conversation_and_result():
    seen = Reading(episode(f"group-1/{ODD}#0")._repr_html_())
    assert seen.open == []
    assert "script" not in seen.tags
    for text in ("What is 2 + 3?", "Let me see.", "→ add(", "reward 0.5", "correct 0.5", f"group-1/{ODD}#0"):
        assert text in seen.said
    assert seen.said.count(ODD) == 5  # id, task, error, question, call


def test_group_is_a_table_with_its_conversations():
    group = Group(Task(f"sums {ODD}", "2 + 3"), (episode("a#0"), episode("a#1", 1.0)), 7)
    seen = Reading(group._repr_html_())
    assert seen.open == []
    assert {"table", "details"} <= seen.tags
    assert "script" not in seen.tags
    for text in ("a#0", "a#1", "0.5", "number 7", f"sums {ODD}"):
        assert text in seen.said


def test_trajectory_without_a_score_reports_it():
    played = episode("a#0")
    unscored = Trajectory(played.id, played.task_id, played.opening, (), EndReason.TIMEOUT)
    assert "reward none" in Reading(unscored._repr_html_()).said


def test_a_long_message_does_not_fill_the_page():
    played = episode("a#0")
    long = Trajectory(played.id, played.task_id, (user("x" * 1_000_000),), (), EndReason.TIMEOUT)
    assert len(long._repr_html_()) < 10_000


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_run_shows_its_evaluations_and_a_curve(tmp_path):
    recipe = load_recipe("demo", [*SMALL, "ablations=null", f"title='{ODD}'"])
    seen = Reading(train(recipe, tmp_path / "run", progress=Progress(quiet=True))._repr_html_())
    assert seen.open == []
    assert "script" not in seen.tags
    assert "svg" in seen.tags
    for text in ("untrained", "supervised", "reinforcement", "95 % interval", "report.html", ODD):
        assert text in seen.said
