"""Every attack there is, and what is promised of them: the list, the document and the stored result agree."""

import json
from collections import Counter

import pytest

import attacks
from attack_list import ATTACKS
from tests_sandbox import levels
from whetstone.sandbox import Isolation

STORED = json.loads((attacks.RESULTS / "attacks.json").read_text())["measured"]
KEPT_IN = {key: row for key, row in STORED.items() if "left_out" not in row and not key.startswith("unsafe")}


def test_each_attack_is_code_and_has_a_name_of_its_own():
    assert len(ATTACKS) >= 300
    (most,) = Counter((attack.family, attack.name) for attack in ATTACKS).most_common(1)
    assert most[1] == 1, most
    for attack in ATTACKS:
        compile(attack.code, attack.name, "exec")


def test_the_document_has_the_table_of_the_stored_result():
    assert attacks.table(STORED) in attacks.DOCUMENT.read_text()
    assert (attacks.RESULTS / "attacks.md").read_text() == attacks.page(STORED)


def test_every_attack_was_tried_at_every_level_and_nothing_came_of_it():
    assert {key.partition(",")[0] for key in KEPT_IN} >= {"namespaces", "landlock", "container"}
    for key, row in KEPT_IN.items():
        assert row["tried"] == len(ATTACKS), key
        assert row["found"] == {}, key


def test_everything_that_is_looked_at_was_seen_to_change_without_isolation():
    seen = {
        name
        for key, row in STORED.items()
        if key.startswith("unsafe")
        for each in row["found"].values()
        for name in each["escaped"]
    }
    assert seen >= {"files", "python", "process", "sockets", "a secret is told", "the kernel said yes"}


def test_writing_the_table_again_changes_nothing_else(tmp_path):
    document = tmp_path / "security.md"
    document.write_text(attacks.DOCUMENT.read_text())
    attacks.write_into(document, attacks.table(STORED))
    assert document.read_text() == attacks.DOCUMENT.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("isolation", levels())
def test_what_writes_on_files_and_takes_what_a_user_has_few_of_comes_to_nothing(isolation):
    found = attacks.one_level(isolation.value, ["attributes", "takes terminals", "watchers"])
    assert found["found"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("isolation", levels(Isolation.NAMESPACES, Isolation.LANDLOCK))
def test_nothing_comes_of_any_attack(isolation):
    found = attacks.one_level(isolation.value, [])
    assert found["found"] == {}
    assert found["left"][-1]["processes"] <= found["left"][0]["processes"] + 1
    assert (found["left_when_closed"]["processes"], found["left_when_closed"]["folders"]) == (0, 0)
