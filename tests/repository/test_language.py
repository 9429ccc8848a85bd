"""The number of outdated language patterns never rises in any file; see `support/language.py`."""

import pytest

from support.language import ROOT, count_hits, describe_rise, find_hits, stored_counts

pytestmark = pytest.mark.structure


@pytest.fixture(scope="module")
def counts():
    if not (ROOT / ".git").exists():
        pytest.skip("the files to check are those that git lists: git clone")
    return count_hits()


def test_no_file_has_more_hits_than_stored(counts):
    stored = stored_counts()
    rose = [name for name, count in counts.items() if count > stored.get(name, 0)]
    assert not rose, "\n".join(describe_rise(ROOT, name, stored.get(name, 0)) for name in rose)


def test_hits_that_are_gone_cannot_come_back(counts):
    fell = [name for name, count in stored_counts().items() if counts.get(name, 0) < count]
    assert not fell, f"run `python tests/support/language.py --lower`; fewer hits in {', '.join(fell)}"


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ('"""How are keys read? From a file."""', "module docstring with a question"),
        ('"""Of the tokens."""', "genitive fragment"),
        ("X = 'the turn behind it'", "place word"),
        ("X = 'None where nothing was given'", "where for a condition"),
        ("X = 1  # so many tokens", "so many"),
        ("X = 'What is optimised.'", "clause instead of a noun"),
        ("X = 'nobody calls it'", "people for components"),
        ("X = 'the option says it'", "say or tell"),
        ("X = 'tokens that were drawn'", "draw"),
        ("def told():\n    pass", "name that is no noun"),
        ("def f(found):\n    pass", "name that is no noun"),
        ("held = 1", "name that is no noun"),
        ("def normalise_rewards():\n    pass", "British spelling"),
        ("class Behaviour:\n    pass", "British spelling"),
    ],
)
def test_one_line_of_old_language_is_a_hit_in_a_new_file(tmp_path, line, pattern):
    path = tmp_path / "new.py"
    path.write_text(f"{line}\n", encoding="utf-8")
    (hit,) = find_hits(path)
    assert hit.pattern.startswith(pattern)
    assert "1 hits, 0 allowed" in describe_rise(tmp_path, "new.py", 0)


@pytest.mark.parametrize(
    "text",
    [
        '"""Read keys from a file."""',
        "X = '`what is` quoted as code'",
        "sampled = [token for token in tokens if token.is_sampled]",
        "def normalize_rewards(noise):\n    precise = noise",
    ],
)
def test_plain_language_and_code_are_no_hits(tmp_path, text):
    path = tmp_path / "new.py"
    path.write_text(f"{text}\n", encoding="utf-8")
    assert find_hits(path) == []


def test_page_is_checked_outside_of_its_code(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("A run goes on.\n\n```\nwhat is\n```\n`so many`\n", encoding="utf-8")
    assert [(hit.line, hit.text) for hit in find_hits(path)] == [(1, "A run goes on.")]
