"""The list of attacks, the document and the stored results agree."""

import json
from collections import Counter

import pytest

import attacks
from attack_list import ATTACKS
from support.sandbox import levels
from whetstone.sandbox import Isolation

STORED = json.loads((attacks.RESULTS / "raw" / "attacks.json").read_text())["measured"]
KEPT_IN = {key: row for key, row in STORED.items() if "left_out" not in row and not key.startswith("unsafe")}


def test_each_attack_is_code_with_its_own_name():
    assert len(ATTACKS) >= 300
    (most,) = Counter((attack.family, attack.name) for attack in ATTACKS).most_common(1)
    assert most[1] == 1, most
    for attack in ATTACKS:
        compile(attack.code, attack.name, "exec")


def test_the_document_has_the_table_of_the_stored_result():
    assert attacks.table(STORED) in attacks.DOCUMENT.read_text()
    assert (attacks.RESULTS / "attacks.md").read_text() == attacks.page(STORED)


def test_every_attack_was_tried_at_every_level_and_had_no_effect():
    assert {key.partition(",")[0] for key in KEPT_IN} >= {"namespaces", "landlock", "container"}
    for key, row in KEPT_IN.items():
        assert row["tried"] == len(ATTACKS), key
        assert row["found"] == {}, key


def test_every_observed_effect_occurs_without_isolation():
    seen = {
        name
        for key, row in STORED.items()
        if key.startswith("unsafe")
        for each in row["found"].values()
        for name in each["escaped"]
    }
    assert seen >= {"files", "python", "process", "sockets", "a secret is told", "the kernel said yes"}


def test_rewriting_the_table_changes_nothing_else(tmp_path):
    document = tmp_path / "security.md"
    document.write_text(attacks.DOCUMENT.read_text())
    attacks.write_into(document, attacks.table(STORED))
    assert document.read_text() == attacks.DOCUMENT.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("isolation", levels())
def test_attacks_on_file_attributes_and_limited_resources_have_no_effect(isolation):
    effects = attacks.run_level(isolation.value, ["attributes", "takes terminals", "watchers"])
    assert effects["found"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("isolation", levels(Isolation.NAMESPACES, Isolation.LANDLOCK))
def test_no_attack_has_an_effect(isolation):
    effects = attacks.run_level(isolation.value, [])
    assert effects["found"] == {}
    assert effects["left"][-1]["processes"] <= effects["left"][0]["processes"] + 1
    assert (effects["left_when_closed"]["processes"], effects["left_when_closed"]["folders"]) == (0, 0)
