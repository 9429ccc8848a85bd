"""The line of a step names its numbers as TRL and verl do."""

from whetstone.renames import upgrade_metrics
from whetstone.reporting.progress import said_of


def test_printed_kl_is_the_kl_to_the_reference():
    assert said_of({"policy/reference_kl": 0.25, "policy/update_kl": 0.5}) == "kl 0.2500  update kl 0.5000"
    # rows of earlier releases have the old name
    assert said_of(upgrade_metrics({"policy/kl": 0.5})) == "update kl 0.5000"
