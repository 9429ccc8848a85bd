"""The page of the attacks in containers agrees with the stored results, which have no effect outside of a container."""

import json

import container_attacks
from attack_list import ATTACKS

STORED = json.loads((container_attacks.RESULTS / "raw" / "container_attacks.json").read_text())


def test_every_attack_was_tried_and_had_no_effect():
    assert STORED["measured"]["tried"] == len(ATTACKS)
    assert STORED["measured"]["found"] == {}
    assert STORED["left"] == 0


def test_page_has_the_stored_results():
    assert (container_attacks.RESULTS / "container_attacks.md").read_text() == container_attacks.page(STORED)
