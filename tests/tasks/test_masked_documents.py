"""Masked documents: which spans are masked, and which folders cannot be used."""

import pytest

from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.tasks.masked_documents import Masked, mask_passage

TEXT = "The town Oslo had 1,200 people. Oslo is near Lake Mira. In Oslo they met on 12.5.1900 [1]."


def test_equal_spans_have_one_mask_and_footnotes_are_no_masks():
    task = mask_passage("p", TEXT, 4)
    assert task.private["answer"] == "Oslo; 1,200; Lake Mira; 12.5.1900"
    assert task.prompt.partition("\n")[2] == (
        "The town [1] had [2] people. [1] is near [3]. In [1] they met on [4] (1)."
    )
    assert task.tags == {"kind": "4 masks"}


def test_passage_with_too_few_spans_has_no_task():
    assert mask_passage("p", "the sea is blue", 1) is None
    assert mask_passage("p", TEXT, 5) is None  # the footnote is a part of 1,200


def test_same_passage_gives_the_same_task():
    assert mask_passage("p", TEXT, 2) == mask_passage("p", TEXT, 2)


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"The town A{number}burg has {number + 20} mills.")
    return tmp_path


def test_tasks_of_a_folder_do_not_depend_on_the_seed(folder):
    one, other = (Masked(corpus=str(folder), levels=[1, 2], seed=seed) for seed in (0, 1))
    assert one.listed_tasks == other.listed_tasks
    assert (one.training_tasks, len(one.held_out(99))) == (6, 2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"levels": [0]}, OptionError, "levels.*1 or more"),
        ({"held_out_fraction": 1.0}, OptionError, "between 0 and 1"),
        ({"levels": [9]}, TaskError, "0 passages have 9 or more names or numbers"),
    ],
)
def test_wrong_options_are_one_line(folder, options, error, message):
    with pytest.raises(error, match=message):
        Masked(corpus=str(folder), **options)


def test_missing_folder_is_one_line(tmp_path):
    with pytest.raises(TaskError, match="no such folder"):
        Masked(corpus=str(tmp_path / "none"))
