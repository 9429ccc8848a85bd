"""The line of a step names its numbers as TRL and verl do."""

import sys

import pytest

from whetstone.renames import upgrade_metrics
from whetstone.reporting.progress import Progress, format_step


def test_printed_kl_is_the_kl_to_the_reference():
    assert format_step({"policy/reference_kl": 0.25, "policy/update_kl": 0.5}) == "kl 0.2500  update kl 0.5000"
    # rows of earlier releases have the old name
    assert format_step(upgrade_metrics({"policy/kl": 0.5})) == "update kl 0.5000"


@pytest.mark.parametrize(("name", "is_shared"), [("output.txt", True), ("errors.txt", False)])
def test_a_line_is_on_the_output_only_if_both_streams_are_one_file(name, is_shared, tmp_path, monkeypatch):
    with open(tmp_path / "output.txt", "a") as output, open(tmp_path / name, "a") as errors:
        monkeypatch.setattr(sys, "stdout", output)
        monkeypatch.setattr(sys, "stderr", errors)
        progress = Progress()
        progress.say("untrained: success 50.0 %")
        assert progress.is_on_output("untrained: success 50.0 %") is is_shared
        assert not progress.is_on_output("another line")
        assert not Progress(quiet=True).is_on_output("untrained: success 50.0 %")
