"""A run's other machines keep foreign code in as its own does, or say that they cannot."""

import pytest

from whetstone.errors import SandboxError
from whetstone.sandbox import isolation
from whetstone.sandbox.isolation import Isolation, Offer, choose, hold_to, strongest


@pytest.fixture(autouse=True)
def _held_to_nothing():
    yield
    hold_to(None)


def machine(monkeypatch, *missing):
    """A machine that lacks these layers."""
    found = tuple(Offer(layer, "no bubblewrap" if layer in missing else "") for layer in Isolation)
    monkeypatch.setattr(isolation, "offers", lambda: found)
    monkeypatch.setattr(isolation, "does_not_hold", lambda layer: "")


def test_a_machine_with_less_is_refused_and_one_with_more_is_not(monkeypatch):
    machine(monkeypatch)
    own = strongest()
    assert own is Isolation.NAMESPACES
    machine(monkeypatch, Isolation.NAMESPACES)
    assert choose("auto") is Isolation.LANDLOCK
    hold_to(own)
    with pytest.raises(
        SandboxError, match=r"this machine has isolation landlock, and the run's own has namespaces \(no bubblewrap\)"
    ):
        choose("auto")
    assert choose("landlock") is Isolation.LANDLOCK  # it is what the recipe says
    hold_to(Isolation.LANDLOCK)
    machine(monkeypatch)
    assert choose("auto") is Isolation.NAMESPACES


def test_where_there_is_none_nothing_is_the_strongest(monkeypatch):
    machine(monkeypatch, Isolation.NAMESPACES, Isolation.LANDLOCK, Isolation.CONTAINER)
    assert strongest() is None
