"""A session is a notebook and a shell with a folder: persistence, displayed values and measurements."""

import asyncio
import json
import time
from dataclasses import replace

import pytest

import support.sandbox
from support.sandbox import MISSING, PATIENT, QUICK, levels, server
from whetstone.sandbox import Ending, Isolation, Limits, Sandbox

LEVEL = next(level for level in (Isolation.NAMESPACES, Isolation.LANDLOCK, Isolation.UNSAFE) if not MISSING[level])


def run(isolation, *codes, limits=PATIENT, **options):
    return support.sandbox.run(isolation, *codes, limits=limits, **options)


def test_variables_and_files_persist_in_a_persistent_session():
    codes = ("x = 41\nopen('note', 'w').write('kept')", "x + 1", "open('note').read()")
    assert [o.value for o in run(LEVEL, *codes)] == ["4", "42", "'kept'"]


def test_nothing_persists_if_each_call_is_fresh():
    outcomes = run(LEVEL, "x = 41\nopen('note', 'w').write('x')", "x", "import os\nos.listdir()", persistent=False)
    assert outcomes[0].ending is Ending.OK
    assert "NameError" in outcomes[1].error
    assert outcomes[2].value == "[]"


def test_only_the_last_expression_is_shown():
    assert run(LEVEL, "1\n2").value == "2"
    assert run(LEVEL, "x = 2").value is None
    assert run(LEVEL, "None").value is None
    assert run(LEVEL, "print('said')\n'shown'").output == "said\n"
    assert run(LEVEL, "").ending is Ending.OK


def test_traceback_shows_the_lines_of_calls_and_none_of_the_supervisor():
    outcome = run(LEVEL, "def f(x):\n    return 1 / x", "f(0)")[1]
    lines = [line for line in outcome.error.splitlines() if line != "    ~^^^"]  # below `f(0)` since Python 3.13
    assert lines == [
        "Traceback (most recent call last):",
        '  File "<call 2>", line 1, in <module>',
        "    f(0)",
        '  File "<call 1>", line 2, in f',
        "    return 1 / x",
        "           ~~^~~",
        "ZeroDivisionError: division by zero",
    ]


def test_traceback_out_of_a_library_keeps_only_its_last_line():
    error = run(LEVEL, "import json\njson.loads('{')").error
    assert error.count("File ") == 2
    assert "JSONDecodeError" in error


def test_error_is_explained_in_any_environment():
    assert "ZeroDivisionError" in run(LEVEL, "import os\nos.environ.clear()\n1/0").error


def test_syntax_error_has_its_position():
    error = run(LEVEL, "x = (1,\ny = 2").error
    assert "SyntaxError" in error
    assert "x = (1," in error


def test_output_keeps_its_order_from_any_source():
    code = "import sys, subprocess\nprint('a')\nsubprocess.run(['echo', 'b'])\nprint('c', file=sys.stderr)"
    assert run(LEVEL, code).output == "a\nb\nc\n"


def test_classes_and_functions_behave_as_in_a_script():
    code = """
import dataclasses, pickle, typing
@dataclasses.dataclass
class Point:
    x: int
def double(x: int) -> int:
    return 2 * x
pickle.loads(pickle.dumps(Point(3))), typing.get_type_hints(double)["x"], double.__annotations__["x"], __name__
"""
    assert run(LEVEL, code).value == "(Point(x=3), <class 'int'>, <class 'int'>, '__main__')"


@pytest.mark.parametrize("isolation", levels(Isolation.NAMESPACES))
def test_process_pool_works_in_a_private_file_system(isolation):
    """Use a pool, whose locks require a private `/dev/shm`; Landlock provides none."""
    workers = "from multiprocessing import Pool\nwith Pool(2) as pool:\n    out = pool.map(double, [1, 2])\nout"
    outcomes = run(isolation, "def double(x):\n    return 2 * x", workers, limits=replace(PATIENT, memory_mb=1024))
    assert outcomes[1].value == "[2, 4]", outcomes[1]


def test_output_before_an_interrupted_call_is_kept():
    for seconds in (0.3, 3, 30):  # on a loaded machine the call may end before it has printed
        outcome = run(LEVEL, "print('so far')\nwhile True: pass", limits=Limits(wall_seconds=seconds, cpu_seconds=60))
        assert outcome.ending is Ending.TIMEOUT
        if outcome.output:
            break
    assert outcome.output == "so far\n"
    assert run(LEVEL, "print('so far')\nimport os\nos._exit(1)").output == "so far\n"


def test_input_is_an_error_and_not_a_wait():
    assert "EOFError" in run(LEVEL, "input()").error


def test_plots_are_returned_as_images_and_closed():
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.figure()\nplt.plot([2, 1])"
    first, second = run(LEVEL, code, "1", limits=PATIENT)
    assert [image[:4] for image in first.images] == [b"\x89PNG", b"\x89PNG"], first
    assert second.images == ()


def test_image_as_last_expression_is_shown():
    outcome = run(LEVEL, "from PIL import Image\nImage.new('RGB', (4, 4))", limits=PATIENT)
    assert outcome.images[0].startswith(b"\x89PNG"), outcome
    assert outcome.value is None


def test_files_are_uploaded_and_downloaded():
    async def both_ways():
        session = server(LEVEL).session(limits=PATIENT)
        await session.write("data/in.csv", b"a,b\n1,2\n")
        await session.python("open('out', 'wb').write(open('data/in.csv', 'rb').read()[::-1])")
        read, missing, long = (
            await session.read("out"),
            await session.read("no"),
            await session.read("out", max_bytes=3),
        )
        session.close()
        return read, missing, long

    read, missing, long = asyncio.run(both_ways())
    assert read.data == b"\n2,1\nb,a"
    assert missing.ending is Ending.ERROR
    assert "more than 3 bytes" in long.error


def test_shell_keeps_its_folder_and_files_and_no_variables():
    outcomes = run(LEVEL, "mkdir sub; cd sub; echo hi > f; X=1", "pwd; cat f; echo [$X]", "exit 3", do="shell")
    assert outcomes[1].output.endswith("sub\nhi\n[]\n")
    assert [o.exit_code for o in outcomes] == [0, 0, 3]


def test_random_numbers_are_separate_per_session_and_repeat_with_its_seed():
    async def drawn(seed):
        session = server(LEVEL).session(seed=seed, limits=PATIENT)
        outcome = await session.python("import random, numpy\nrandom.random(), float(numpy.random.rand())")
        session.close()
        return outcome.value

    async def all_of_them():
        return [await drawn(seed) for seed in (1, 2, 1)]

    first, other, repeated = asyncio.run(all_of_them())
    assert first == repeated != other


def test_waiting_for_a_slot_is_not_part_of_the_call_time():
    async def crowd():
        sandbox = Sandbox(isolation=LEVEL, limits=PATIENT, max_running=1)
        sessions = [sandbox.session() for _ in range(4)]
        began = time.perf_counter()
        try:
            outcomes = await asyncio.gather(*(s.python("import time\ntime.sleep(0.2)") for s in sessions))
            return outcomes, time.perf_counter() - began
        finally:
            sandbox.close()

    outcomes, elapsed = asyncio.run(crowd())
    assert {o.ending for o in outcomes} == {Ending.OK}
    assert max(o.queue_seconds for o in outcomes) > 0.55
    assert sum(o.seconds for o in outcomes) <= elapsed  # each was running while the others waited


def test_64_concurrent_sessions_all_run():
    async def many():
        sessions = [server(LEVEL).session(seed=i, limits=PATIENT) for i in range(64)]
        try:
            busy = [s.python("sum(i * i for i in range(200_000))", wall_seconds=120) for s in sessions[::2]]
            quick = [s.python("1", wall_seconds=120) for s in sessions[1::2]]
            return await asyncio.gather(*busy, *quick)
        finally:
            for session in sessions:
                session.close()

    assert {o.ending for o in asyncio.run(many())} == {Ending.OK}


def test_session_belongs_to_its_event_loop_and_the_server_to_none():
    assert run(LEVEL, "1").value == run(LEVEL, "1").value == "1"


def test_reports_of_a_call_are_valid_json_text():
    outcome = run(LEVEL, "print('\\ud800'); '\\x00\\x1b'")
    json.dumps([outcome.output, outcome.value]).encode()
    assert QUICK.output_characters


@pytest.mark.parametrize("name", ["calculation", "threads"])
def test_honest_code_with_helpers_runs(name):
    codes = {
        "calculation": "import numpy as np\nint(np.linalg.det(np.eye(50)))",
        "threads": "from concurrent.futures import ThreadPoolExecutor\nlist(ThreadPoolExecutor(4).map(abs, [-1, -2]))",
    }
    assert run(LEVEL, codes[name]).ending is Ending.OK
