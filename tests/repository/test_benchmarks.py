"""Every benchmark can be started by name, and `benchmarks/README.md` lists it with its result."""

import re
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
README = (BENCHMARKS / "README.md").read_text()


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], cwd=BENCHMARKS.parent, capture_output=True, text=True, check=False
    )


def test_readme_lists_every_name():
    names = re.findall(r"^  (\w+) ", run().stdout, re.MULTILINE)
    assert len(names) > 60
    assert set(re.findall(r"`python -m benchmarks ([a-z]\w*)", README)) == set(names)


def test_every_page_in_the_readme_exists():
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 40
    assert [link for link in links if not (BENCHMARKS / link).exists()] == []


def test_unknown_name_is_one_line_with_the_nearest_name():
    done = run("engin")
    assert (done.returncode, done.stderr) == (1, "benchmarks: no benchmark engin; did you mean engine?\n")
