"""Other machines of a run isolate untrusted code as its own does, or report that they cannot."""

import pytest

from whetstone.errors import SandboxError
from whetstone.sandbox import isolation
from whetstone.sandbox.isolation import Isolation, Offer, choose_isolation, require_isolation, strongest_layer


@pytest.fixture(autouse=True)
def _reset_minimum():
    yield
    require_isolation(None)


def machine(monkeypatch, *missing):
    """Describe a machine that lacks these layers."""
    offers = tuple(Offer(layer, "no bubblewrap" if layer in missing else "") for layer in Isolation)
    monkeypatch.setattr(isolation, "list_isolation_layers", lambda: offers)
    monkeypatch.setattr(isolation, "missing_guarantees", lambda layer: "")


def test_machine_with_weaker_isolation_is_refused(monkeypatch):
    machine(monkeypatch)
    own = strongest_layer()
    assert own is Isolation.NAMESPACES
    machine(monkeypatch, Isolation.NAMESPACES)
    assert choose_isolation("auto") is Isolation.LANDLOCK
    require_isolation(own)
    with pytest.raises(
        SandboxError, match=r"isolation landlock is weaker than namespaces of the run \(no bubblewrap\)"
    ):
        choose_isolation("auto")
    assert choose_isolation("landlock") is Isolation.LANDLOCK  # the recipe names it
    require_isolation(Isolation.LANDLOCK)
    machine(monkeypatch)
    assert choose_isolation("auto") is Isolation.NAMESPACES


def test_without_any_layer_unsafe_is_the_strongest(monkeypatch):
    machine(monkeypatch, Isolation.NAMESPACES, Isolation.LANDLOCK, Isolation.CONTAINER)
    assert strongest_layer() is None
