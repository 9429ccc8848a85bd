"""Text that a model reads is the same on every machine: no path of the host, no address of an object."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.sandbox import levels, run
from support.slow import examples
from support.tool_episodes import played
from whetstone.sandbox import host_paths
from whetstone.sandbox.host_paths import remove_host_paths
from whetstone.tools import Toolset
from whetstone.tools.sandbox_tools import shown_outcome

CALLS = [
    "x = (1,\ny = 2",
    "import json\njson.loads('{')",
    "from json import nope",
    "import json\njson",
    "import numpy\nnumpy.linalg.inv(numpy.zeros((2, 2)))",
    "import sys, os\n[os.path.dirname(sys.executable), os.path.dirname(os.__file__)]",
    "def f():\n    pass\nf",
    "import os\nopen(os.path.join(os.getcwd(), 'absent'))",
    "import asyncio\nasync def f():\n    async with asyncio.TaskGroup() as group:\n"
    "        group.create_task(asyncio.to_thread(int, 'x'))\nasyncio.run(f())",
]
SHOW = """
import asyncio, json, sys
from whetstone.sandbox import Sandbox
from whetstone.tools.sandbox_tools import shown_outcome

async def shown(code):
    session = sandbox.session()
    try:
        return shown_outcome(await session.python(code)).content[0].text
    finally:
        session.close()

sandbox = Sandbox(isolation="unsafe")
print(json.dumps([asyncio.run(shown(code)) for code in json.loads(sys.argv[1])]))
sandbox.close()
"""


def texts_of(python, folder):
    """Return the text that a model reads for each call if this Python runs it and `folder` is current and home."""
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOME": str(folder)}
    command = [str(python), "-c", SHOW, json.dumps(CALLS)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_same_calls_give_the_same_texts_with_pythons_in_different_folders(tmp_path):
    (tmp_path / "another python").symlink_to(sys.base_prefix)
    another = tmp_path / "another python" / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    first, second = texts_of(sys.executable, tmp_path / "first"), texts_of(another, tmp_path / "second")
    assert first == second
    for text in first:
        assert str(tmp_path) not in text
        assert sysconfig.get_path("stdlib") not in text
        assert sys.prefix not in text


@pytest.mark.parametrize("isolation", levels())
def test_isolation_changes_nothing_of_the_text_of_an_error(isolation):
    for code in CALLS[:5]:
        texts = [shown_outcome(run(level, code)).content[0].text for level in (isolation, "unsafe")]
        assert texts[0] == texts[1]


FOLDERS = st.lists(st.text("abcxyz-_. ", min_size=1, max_size=6).map(str.strip).filter(bool), min_size=1, max_size=4)


@examples(60)
@given(st.lists(FOLDERS.filter(lambda parts: parts[0] not in ("usr", ".", "..")), min_size=2, max_size=2))
def test_paths_of_python_are_the_same_text_wherever_python_is_installed(folders):
    texts = []
    for parts in folders:
        prefix = "/" + "/".join(parts)
        library = f"{prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}"
        with pytest.MonkeyPatch.context() as patch:
            for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
                patch.setattr(sys, name, prefix)
            patch.setattr(sysconfig, "get_path", lambda name, library=library: library)
            host_paths._python_folders.cache_clear()
            text = f'File "{library}/json/decoder.py"; {library}/site-packages/numpy; {library}; {prefix}/bin/python3'
            texts.append(remove_host_paths(text))
    host_paths._python_folders.cache_clear()
    assert set(texts) == {'File "json/decoder.py"; numpy; <python>/lib; <python>/bin/python3'}


@pytest.mark.parametrize("text", ["/usr/bin/sh: not found", "a/b", "at 0x10", "1/2", "", "~", "/rooted", "<at 0xff"])
def test_other_text_is_not_changed(text):
    assert remove_host_paths(text, user_folders=True) == text


def test_a_tool_that_raises_names_no_folder_of_the_user(tmp_path, monkeypatch):
    def look() -> str:
        """Looks."""
        raise LookupError(f"{Path.cwd() / 'data' / 'x'}, {Path.home() / 'y'}, {object()!r}")

    texts = []
    for name in ("one", "another"):
        folder = tmp_path / name / "work"
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HOME", str(folder.parent))
        texts.append(played(Toolset([look]), ("look", {}))[0].text)
    assert texts == ["error: LookupError: data/x, ~/y, <object object at 0x…>"] * 2
