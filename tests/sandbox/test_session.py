"""A session is a notebook and a shell with a folder: what lasts, what is shown, what is measured."""

import asyncio
import json
import time
from dataclasses import replace

import pytest

import tests_sandbox
from tests_sandbox import MISSING, PATIENT, QUICK, levels, server
from whetstone.sandbox import Ending, Isolation, Limits, Sandbox

LEVEL = next(level for level in (Isolation.NAMESPACES, Isolation.LANDLOCK, Isolation.UNSAFE) if not MISSING[level])


def run(isolation, *codes, limits=PATIENT, **options):
    return tests_sandbox.run(isolation, *codes, limits=limits, **options)


def test_variables_and_files_last_where_a_session_is_persistent():
    codes = ("x = 41\nopen('note', 'w').write('kept')", "x + 1", "open('note').read()")
    assert [o.value for o in run(LEVEL, *codes)] == ["4", "42", "'kept'"]


def test_nothing_lasts_where_each_call_is_fresh():
    outcomes = run(LEVEL, "x = 41\nopen('note', 'w').write('x')", "x", "import os\nos.listdir()", persistent=False)
    assert outcomes[0].ending is Ending.OK
    assert "NameError" in outcomes[1].error
    assert outcomes[2].value == "[]"


def test_the_last_expression_is_shown_and_nothing_else():
    assert run(LEVEL, "1\n2").value == "2"
    assert run(LEVEL, "x = 2").value is None
    assert run(LEVEL, "None").value is None
    assert run(LEVEL, "print('said')\n'shown'").output == "said\n"
    assert run(LEVEL, "").ending is Ending.OK


def test_a_traceback_shows_the_lines_of_the_calls_and_none_of_ours():
    outcome = run(LEVEL, "def f(x):\n    return 1 / x", "f(0)")[1]
    assert outcome.error.splitlines() == [
        "Traceback (most recent call last):",
        '  File "<call 2>", line 1, in <module>',
        "    f(0)",
        '  File "<call 1>", line 2, in f',
        "    return 1 / x",
        "           ~~^~~",
        "ZeroDivisionError: division by zero",
    ]


def test_a_traceback_out_of_a_library_keeps_its_last_line_alone():
    error = run(LEVEL, "import json\njson.loads('{')").error
    assert error.count("File ") == 2
    assert "JSONDecodeError" in error


def test_an_error_is_explained_whatever_was_done_to_the_environment():
    assert "ZeroDivisionError" in run(LEVEL, "import os\nos.environ.clear()\n1/0").error


def test_code_that_does_not_parse_says_where():
    error = run(LEVEL, "x = (1,\ny = 2").error
    assert "SyntaxError" in error
    assert "x = (1," in error


def test_printed_text_comes_in_its_order_whoever_prints_it():
    code = "import sys, subprocess\nprint('a')\nsubprocess.run(['echo', 'b'])\nprint('c', file=sys.stderr)"
    assert run(LEVEL, code).output == "a\nb\nc\n"


def test_classes_and_functions_behave_as_in_a_program_of_their_own():
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
def test_a_pool_of_processes_works_in_a_file_system_of_its_own(isolation):
    """Its locks need a `/dev/shm` that nothing else can read; with Landlock there is none."""
    workers = "from multiprocessing import Pool\nwith Pool(2) as pool:\n    out = pool.map(double, [1, 2])\nout"
    outcomes = run(isolation, "def double(x):\n    return 2 * x", workers, limits=replace(PATIENT, memory_mb=1024))
    assert outcomes[1].value == "[2, 4]", outcomes[1]


def test_what_was_printed_before_a_call_was_cut_off_is_kept():
    for seconds in (0.3, 3, 30):  # on a loaded machine the call may end before it has printed
        outcome = run(LEVEL, "print('so far')\nwhile True: pass", limits=Limits(wall_seconds=seconds, cpu_seconds=60))
        assert outcome.ending is Ending.TIMEOUT
        if outcome.output:
            break
    assert outcome.output == "so far\n"
    assert run(LEVEL, "print('so far')\nimport os\nos._exit(1)").output == "so far\n"


def test_asking_for_input_is_an_error_and_not_a_wait():
    assert "EOFError" in run(LEVEL, "input()").error


def test_plots_come_back_as_pictures_and_are_closed():
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.figure()\nplt.plot([2, 1])"
    first, second = run(LEVEL, code, "1", limits=PATIENT)
    assert [image[:4] for image in first.images] == [b"\x89PNG", b"\x89PNG"], first
    assert second.images == ()


def test_a_picture_as_last_expression_is_shown():
    outcome = run(LEVEL, "from PIL import Image\nImage.new('RGB', (4, 4))", limits=PATIENT)
    assert outcome.images[0].startswith(b"\x89PNG"), outcome
    assert outcome.value is None


def test_files_go_in_and_out():
    async def both_ways():
        session = server(LEVEL).session(limits=PATIENT)
        await session.write("data/in.csv", b"a,b\n1,2\n")
        await session.python("open('out', 'wb').write(open('data/in.csv', 'rb').read()[::-1])")
        read, missing, long = await session.read("out"), await session.read("no"), await session.read("out", most=3)
        session.close()
        return read, missing, long

    read, missing, long = asyncio.run(both_ways())
    assert read.data == b"\n2,1\nb,a"
    assert missing.ending is Ending.ERROR
    assert "more than 3 bytes" in long.error


def test_the_shell_keeps_its_folder_and_its_files_and_no_variables():
    outcomes = run(LEVEL, "mkdir sub; cd sub; echo hi > f; X=1", "pwd; cat f; echo [$X]", "exit 3", do="shell")
    assert outcomes[1].output.endswith("sub\nhi\n[]\n")
    assert [o.exit_code for o in outcomes] == [0, 0, 3]


def test_random_numbers_are_a_sessions_own_and_come_again_with_its_seed():
    async def drawn(seed):
        session = server(LEVEL).session(seed=seed, limits=PATIENT)
        outcome = await session.python("import random, numpy\nrandom.random(), float(numpy.random.rand())")
        session.close()
        return outcome.value

    async def all_of_them():
        return [await drawn(seed) for seed in (1, 2, 1)]

    first, other, again = asyncio.run(all_of_them())
    assert first == again != other


def test_waiting_for_a_place_is_no_part_of_a_calls_time():
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
    assert sum(o.seconds for o in outcomes) <= elapsed  # each ran while the others waited


def test_64_sessions_at_once_all_get_their_turn():
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


def test_a_session_belongs_to_no_loop_but_its_own_and_the_server_to_none():
    assert run(LEVEL, "1").value == run(LEVEL, "1").value == "1"


def test_what_is_said_of_a_call_is_text_json_can_carry():
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
