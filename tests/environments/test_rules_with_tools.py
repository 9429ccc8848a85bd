"""The rules of our worlds with tools and users: what counts at the end, and what only looks like it."""

import asyncio
import contextlib
import functools
import json
import random

import pytest

from tests_sandbox import needs_isolation
from tests_worlds import environment_of, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.native import bug_repair
from whetstone.environments.native.apis import Services
from whetstone.errors import ToolError
from whetstone.evaluation.contract import play
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

# ------------------------------------------------------------ services, support


def test_services_say_no_and_nothing_changes():
    task = source_of("apis", levels=[3]).task(0)
    services = Services()
    services.open(Episode(Task("a", "", {**task.private, "services": list(task.private["state"])}), 0))
    before = json.dumps(services.state)
    refused = {
        "files": lambda: services.move_file("nothing.txt", "x"),
        "tickets": lambda: services.open_ticket("x", 9),
        "trading": lambda: services.buy("ACME", 10**6),
        "travel": lambda: services.book("f99", "Ann"),
    }
    for name in task.private["services"]:
        with pytest.raises(ToolError):
            refused[name]()
    assert json.dumps(services.state) == before


def test_what_is_undone_was_not_done():
    """Bought by mistake and sold again: the state is as if nothing had been bought. And one flight is the cheapest."""
    source = source_of("apis", levels=[3])
    tasks = [source.task(index) for index in range(400)]
    trading = next(t for t in tasks if "trading" in t.private["services"])
    services = Services()
    services.open(Episode(trading, 0))
    account = services.state["trading"]
    before = json.dumps(services.state)
    (stock,) = list(set(account["prices"]) - set(account["held"]))[:1]
    services.buy(stock, 1)
    services.sell(stock, 1)
    assert json.dumps(services.state) == before
    for task in tasks:
        for flights in [task.private["state"].get("travel", {}).get("flights", {})]:
            prices = [price for *_, price in flights.values()]
            assert len(set(prices)) == len(prices)


def support(*said, faults=("airplane",)):
    """(final, answers) of a conversation about a phone whose airplane mode is on."""
    known = {"number": "123456", "person": "Ann Lee", "faults": list(faults), "greeting": "I am offline.", "script": []}
    task = Task("s", "", known)

    async def talk():
        environment = environment_of("support")
        await environment.reset(task, seed=0)
        answers = []
        for action in said:
            result = await environment.step(action)
            answers.append(result.observation.messages[0].text)
            if result.ended:
                break
        final = await environment.verdict()
        await environment.close()
        return final, answers

    return asyncio.run(talk())


def account(name, number="123456"):
    return assistant("", ToolCall(name, json.dumps({"number": number})))


def test_the_user_does_what_he_is_told_and_is_content_when_it_works():
    final, answers = support(assistant("What is your number?"), assistant("Turn airplane mode off."))
    assert answers == ["My number is 123456.", "It works now, thank you."]
    assert final["success"] is True


@pytest.mark.parametrize(
    "said",
    [
        "Turn off airplane mode",
        "Please turn airplane mode off, then wait.",
        "Could you switch your phone's airplane mode off?",
        "Disable flight mode!",
        "I'd like you to turn airplane mode off.",
        "If airplane mode is on, turn it off",
    ],
)
def test_the_user_understands_an_order_in_other_words(said):
    final, answers = support(assistant(said))
    assert (answers, final["success"]) == (["It works now, thank you."], True)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Do NOT turn airplane mode off.", "I do not understand."),
        ("Don't turn the vpn off", "I do not understand."),
        ("Is airplane mode off?", "I do not understand."),
        ("In which country are you?", "I do not understand."),
        ("I resumed your line, the data is on.", "I do not understand."),
        ("Does it work now?", "It still does not work."),
    ],
)
def test_what_is_no_order_changes_nothing(said, answer):
    final, answers = support(assistant(said))
    assert (answers, final["collateral"], final["works"]) == ([answer], 0, False)


def test_what_has_mended_something_may_be_said_again():
    twice = assistant("Turn airplane mode off.")
    final, answers = support(account("find_account"), twice, account("resume_line"), faults=["airplane", "suspended"])
    assert final["collateral"] == 0
    again = [account("find_account"), *[account("resume_line")] * 2, twice, assistant("try")]
    final, answers = support(*again, faults=["airplane", "suspended"])
    assert (final["success"], final["collateral"]) == (True, 0)
    final, answers = support(twice, twice, account("find_account"), account("resume_line"), assistant("Does it work?"),
                             faults=["airplane", "suspended"])  # fmt: skip
    assert (answers[-1], final["success"]) == ("It works now, thank you.", True)


def test_what_is_turned_the_wrong_way_is_broken():
    final, _ = support(assistant("Turn mobile data off."), assistant("Turn airplane mode off."))
    assert (final["works"], final["collateral"]) == (False, 1)


def test_what_was_not_broken_must_not_be_changed_on_either_side():
    final, _ = support(account("find_account"), account("refill_data"), assistant("Turn airplane mode off."))
    assert (final["works"], final["collateral"], final["success"]) == (True, 1, False)
    final, _ = support(assistant("Turn the vpn off."), assistant("Turn airplane mode off."))
    assert (final["works"], final["collateral"], final["success"]) == (True, 1, False)


def test_an_account_is_looked_up_before_it_is_changed():
    _, answers = support(account("resume_line"), account("find_account", "999"))
    assert answers == ["error: look up the account first", "error: there is no account 999"]


def test_patience_ends():
    final, answers = support(*[assistant("hm")] * 20)
    assert answers[-1] == "I give up."
    assert final["success"] is False


# ------------------------------------------------------------ chores, bugs


def test_in_every_chore_there_is_something_to_do():
    source = source_of("chores")
    for index in range(300):
        private = source.task(index).private
        assert private["expected"] != private["files"]


def in_shell(task, *commands, name="chores"):
    """What the world says of these commands of a shell."""
    left = iter([*(assistant("", ToolCall("shell", json.dumps({"command": c}))) for c in commands), assistant("done")])
    make = functools.partial(environment_of, name)
    return asyncio.run(play(make, task, lambda *_: next(left), seed=7, max_turns=9)).trajectory.final


FOLDER = {"a.log": "one\n", "b.log": "two\n", "notes.txt": "remember\n"}
DELETED = Task("c", "Delete every .log file.", {"files": FOLDER, "expected": {"notes.txt": "remember\n"}})
COPIED = Task("c", "Copy notes.txt.", {"files": FOLDER, "expected": {**FOLDER, "backup/notes.txt": "remember\n"}})
COUNTED = Task("c", "Count.", {"files": FOLDER, "expected": {**FOLDER, "total": "1\n"}})


@needs_isolation
@pytest.mark.parametrize(
    ("task", "command", "done"),
    [
        (DELETED, "rm *.log", True),
        (DELETED, "for f in *.log; do : > $f; done", False),
        (DELETED, "mkdir -p $(printf 'd/%.0s' $(seq 1 2000))", False),
        (DELETED, "rm *.log; mkdir empty", False),
        (DELETED, "mkdir .hidden; mv *.log .hidden", False),
        (DELETED, "rm *.log; mkfifo pipe", False),
        (DELETED, "head -c 100 /dev/urandom > a.log; rm b.log", False),
        (COPIED, "mkdir backup; cp notes.txt backup", True),
        (COPIED, "mkdir backup; ln -s ../notes.txt backup/notes.txt", False),
        (COPIED, "mkdir backup; mv notes.txt backup; ln -s backup/notes.txt notes.txt", False),
        (COUNTED, "printf 1 > total", True),
        (COUNTED, "echo 2 > total", False),
        (COUNTED, "mkfifo total", False),
    ],
)
def test_a_chore_is_done_when_everything_there_is_as_it_should_be(task, command, done):
    assert in_shell(task, command)["success"] is done


def passed(text, tests):
    """The places of the tests a library passes."""
    names = {}
    exec(text, names)
    found = set()
    for place, (name, arguments, wanted) in enumerate(tests):
        with contextlib.suppress(Exception):
            if json.loads(json.dumps(names[name](*json.loads(json.dumps(arguments))))) == wanted:
                found.add(place)
    return found


@needs_isolation
@pytest.mark.slow
def test_every_broken_version_fails_a_hidden_and_a_visible_test_and_the_right_one_passes_all(tmp_path):
    source = source_of("bug_repair")
    for index in range(300):
        private = source.task(index).private
        repair = private["script"][2][2]
        broken, visible = private["files"]["library.py"], private["files"]["test_library.py"]
        mended = broken.replace(repair["old"], repair["new"])
        assert broken.count(repair["old"]) == 1
        everything = set(range(len(private["tests"])))
        assert passed(mended, private["tests"]) == everything
        assert everything - passed(broken, private["tests"]) == set(private["failing"]) != set()
        checks = "\n".join(line for line in visible.splitlines() if line.startswith("assert"))
        assert compile(visible, "test_library.py", "exec")
        exec(f"{mended}\n{checks}", {})
        with pytest.raises(Exception):  # noqa: B017 - whatever a broken function raises
            exec(f"{broken}\n{checks}", {})


def repaired(task, library):
    """What the world says of a library written in place of the task's."""
    return in_shell(task, f"cat > library.py <<'EOF'\n{library}\nEOF", name="bug_repair")


@needs_isolation
@pytest.mark.slow
def test_code_that_looks_for_the_judge_finds_nobody():
    task = source_of("bug_repair").task(3)
    names = sorted({name for name, *_ in task.private["tests"]})
    frame = "import sys\n" + "\n".join(
        f"def {name}(*a):\n    return dict(map(repr, c[1:]) for c in sys._getframe(1).f_locals['cases'])[repr([*a])]"
        for name in names
    )
    printed = f"import builtins\np = print\nbuiltins.print = lambda *a, **k: p({len(task.private['tests'])})"
    always = "class Same:\n    def __eq__(self, other):\n        return True\n" + "\n".join(
        f"{name} = lambda *a: Same()" for name in names
    )
    lied = "\n".join(f"{name} = lambda *a: 99999" for name in names) + "\nprint(99999)\nprint('²')"
    hung = f"while True:\n    pass\n{task.private['files']['library.py']}"
    for library in (frame, printed, always, lied, hung, "import os\nos._exit(0)", "def", ""):
        final = repaired(task, library)
        assert (final["success"], final["score"]) == (False, 0.0), library


@needs_isolation
def test_doing_nothing_repairs_nothing_and_breakage_is_taken_off():
    for index in range(6):
        task = source_of("bug_repair").task(index)
        private = task.private
        assert in_shell(task, "true", name="bug_repair")["score"] == 0.0
        repair = private["script"][2][2]
        mended = private["files"]["library.py"].replace(repair["old"], repair["new"])
        assert repaired(task, mended) == {"success": True, "score": 1.0, "passed": len(private["tests"])}
        bug = private["tests"][private["failing"][0]][0]
        other = next(name for name, *_ in private["tests"] if name != bug)
        hurt = repaired(task, f"{mended}\n{other} = None")
        lost = sum(name == other for name, *_ in private["tests"])
        assert hurt["score"] == pytest.approx(1 - lost / (len(private["tests"]) - len(private["failing"])))


@needs_isolation
def test_what_the_tests_of_a_repository_print_names_no_folder():
    task = source_of("bug_repair").task(0)
    left = iter(
        [
            assistant("", ToolCall("shell", '{"command": "python3 test_library.py"}')),
            assistant("", ToolCall("shell", '{"command": "echo def > library.py; python3 test_library.py"}')),
            assistant("done"),
        ]
    )
    make = functools.partial(environment_of, "bug_repair")
    turns = asyncio.run(play(make, task, lambda *_: next(left), seed=7)).trajectory.turns
    said = [turn.observation[0].text for turn in turns[:2]]
    assert "should be" in said[0]
    assert "library.py, line 1" in said[1]
    assert not any("/" in text or "Traceback" in text for text in said)


def test_an_injected_change_is_one_change():
    draw = random.Random(0)
    for source in bug_repair._functions().values():
        broken = bug_repair.broken_version(draw, source)
        assert broken != source
        assert compile(broken, "broken", "exec")
