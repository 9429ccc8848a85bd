"""Rules of the built-in worlds with tools and users."""

import asyncio
import contextlib
import functools
import json
import random

import pytest

from support.environments import by_expert, environment_of, source_of
from support.sandbox import needs_isolation
from whetstone.chat import ToolCall, assistant
from whetstone.environments.built_in import bug_repair
from whetstone.environments.built_in.apis import Services
from whetstone.environments.built_in.support import ACCOUNT, PHONE
from whetstone.errors import ToolError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.rewards.efficiency.relevant_questions import relevant_questions
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

# ------------------------------------------------------------ services, support


def test_refused_calls_of_services_change_nothing():
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


def test_undone_purchase_leaves_the_initial_state():
    """Buy and cancel: the state equals the initial one. One flight is the cheapest."""
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


def support(*messages, faults=("airplane",)):
    """Return (final, answers) of a conversation about a phone in airplane mode."""
    known = {"number": "123456", "person": "Ann Lee", "faults": list(faults), "greeting": "I am offline.", "script": []}
    task = Task("s", "", known)

    async def talk():
        environment = environment_of("support")
        await environment.reset(task, seed=0)
        answers = []
        for action in messages:
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


def test_user_follows_instructions_and_ends_once_the_phone_works():
    final, answers = support(assistant("What is your number?"), assistant("Turn airplane mode off."))
    assert answers == ["My number is 123456.", "It works now, thank you."]
    assert final["success"] is True


@pytest.mark.parametrize(
    "instruction",
    [
        "Turn off airplane mode",
        "Please turn airplane mode off, then wait.",
        "Could you switch your phone's airplane mode off?",
        "Disable flight mode!",
        "I'd like you to turn airplane mode off.",
        "If airplane mode is on, turn it off",
    ],
)
def test_user_understands_paraphrased_instructions(instruction):
    final, answers = support(assistant(instruction))
    assert (answers, final["success"]) == (["It works now, thank you."], True)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Do NOT turn airplane mode off.", "I do not understand."),
        ("Don't turn the vpn off", "I do not understand."),
        ("Is airplane mode off?", "I do not understand."),
        ("In which country are you?", "I do not understand."),
        ("I resumed your line, the data is on.", "I do not understand."),
        ("Does it work now?", "It still does not work."),
    ],
)
def test_text_without_an_instruction_changes_nothing(text, answer):
    final, answers = support(assistant(text))
    assert (answers, final["collateral"], final["works"]) == ([answer], 0, False)


def test_repeated_instruction_is_confirmed():
    twice = assistant("Turn airplane mode off.")
    final, answers = support(account("find_account"), twice, account("resume_line"), faults=["airplane", "suspended"])
    assert final["collateral"] == 0
    messages = [account("find_account"), *[account("resume_line")] * 2, twice, assistant("try")]
    final, answers = support(*messages, faults=["airplane", "suspended"])
    assert (final["success"], final["collateral"]) == (True, 0)
    final, answers = support(twice, twice, account("find_account"), account("resume_line"), assistant("Does it work?"),
                             faults=["airplane", "suspended"])  # fmt: skip
    assert (answers[-1], final["success"]) == ("It works now, thank you.", True)


def test_wrong_setting_breaks_the_phone():
    final, _ = support(assistant("Turn mobile data off."), assistant("Turn airplane mode off."))
    assert (final["works"], final["collateral"]) == (False, 1)


def test_changes_of_working_settings_are_collateral_damage():
    final, _ = support(account("find_account"), account("refill_data"), assistant("Turn airplane mode off."))
    assert (final["works"], final["collateral"], final["success"]) == (True, 1, False)
    final, _ = support(assistant("Turn the vpn off."), assistant("Turn airplane mode off."))
    assert (final["works"], final["collateral"], final["success"]) == (True, 1, False)


def test_account_requires_a_lookup_before_changes():
    _, answers = support(account("resume_line"), account("find_account", "999"))
    assert answers == ["error: look up the account first", "error: there is no account 999"]


def test_patience_of_the_user_is_bounded():
    final, answers = support(*[assistant("hm")] * 20)
    assert answers[-1] == "I give up."
    assert final["success"] is False


def test_ambiguous_requests_lack_one_detail_that_a_fault_requires():
    """Ambiguous requests: the greeting states every detail but one, and the expert asks for exactly this one."""
    source = source_of("support", ambiguous_fraction=0.5)
    tasks = [*source.held_out(30), *(source.task(index) for index in range(200))]
    for task in tasks:
        missing, faults = task.private["missing"], set(task.private["faults"])
        stated = {detail for detail, text in (("number", "number is"), ("phone", "phone shows"))
                  if text in task.private["greeting"]}  # fmt: skip
        assert stated == {"number", "phone"} - set(missing)
        assert all(faults & set(PHONE if detail == "phone" else ACCOUNT) for detail in missing)
        assert task.tags["request"] == ("ambiguous" if missing else "complete")
    assert 80 <= sum(bool(task.private["missing"]) for task in tasks[30:]) <= 120
    for task in tasks[:30]:
        played = by_expert("support", task, source)
        score = asyncio.run(relevant_questions(played.trajectory, task))
        assert (score.value, score.parts["questions"]) == (1.0, len(task.private["missing"]))


def test_questions_are_counted_once_per_detail():
    source = source_of("support", ambiguous_fraction=1.0)
    task = next(task for task in map(source.task, range(99)) if task.private["missing"] == ["number"])
    messages = ["Which is your number, and what does your phone show?", "Nice weather.", "Your number again?"]
    left = iter([*map(assistant, messages), assistant("Turn the vpn on.")])
    make = functools.partial(environment_of, "support")
    final = asyncio.run(play_with_policy(make, task, lambda *_: next(left), seed=7, max_turns=4)).trajectory.final
    assert (final["questions"], final["relevant_questions"]) == (4, 1)


# ------------------------------------------------------------ chores, bugs


def test_every_chore_requires_a_change():
    source = source_of("chores")
    for index in range(300):
        private = source.task(index).private
        assert private["expected"] != private["files"]


def in_shell(task, *commands, name="chores"):
    """Return the verdict after these shell commands."""
    left = iter([*(assistant("", ToolCall("shell", json.dumps({"command": c}))) for c in commands), assistant("done")])
    make = functools.partial(environment_of, name)
    return asyncio.run(play_with_policy(make, task, lambda *_: next(left), seed=7, max_turns=9)).trajectory.final


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
def test_chore_requires_the_expected_files_and_no_others(task, command, done):
    assert in_shell(task, command)["success"] is done


@needs_isolation
def test_folder_after_each_chore_is_a_milestone():
    source, plain = source_of("chores", levels=[3], milestones=True), source_of("chores", levels=[3])
    task = next(task for task in map(source.task, range(99)) if task.private["script"][0][2]["command"][:2] == "mv")
    number = next(k for k in range(99) if source.task(k) == task)
    assert (task.id, task.private["files"]) == (plain.task(number).id, plain.task(number).private["files"])
    assert not any("milestones" in each.private for each in source.held_out(10))
    one, two = (step[2]["command"] for step in task.private["script"][:2])
    turns = {
        ("ls", one, one, two): {"chore 1": 2, "chore 2": 4},
        ("true", f"{one} && {two}"): {"chore 1": 2, "chore 2": 2},
        (f"{one} && touch other", "rm other"): {"chore 1": 2},
        (f"echo '{one}'", f"echo '{two}'"): {},
    }
    for commands, expected in turns.items():
        assert in_shell(task, *commands)["milestone_turns"] == expected
    assert "milestone_turns" not in in_shell(plain.task(number), one, two)


def passing_tests(text, tests):
    """Return the indices of the tests that a library passes."""
    names = {}
    exec(text, names)
    passing = set()
    for place, (name, arguments, wanted) in enumerate(tests):
        with contextlib.suppress(Exception):
            if json.loads(json.dumps(names[name](*json.loads(json.dumps(arguments))))) == wanted:
                passing.add(place)
    return passing


@needs_isolation
@pytest.mark.slow
def test_broken_versions_fail_hidden_and_visible_tests_and_the_correct_one_passes_all(tmp_path):
    source = source_of("bug_repair")
    for index in range(300):
        private = source.task(index).private
        repair = private["script"][2][2]
        broken, visible = private["files"]["library.py"], private["files"]["test_library.py"]
        mended = broken.replace(repair["old"], repair["new"])
        assert broken.count(repair["old"]) == 1
        everything = set(range(len(private["tests"])))
        assert passing_tests(mended, private["tests"]) == everything
        assert everything - passing_tests(broken, private["tests"]) == set(private["failing"]) != set()
        checks = "\n".join(line for line in visible.splitlines() if line.startswith("assert"))
        assert compile(visible, "test_library.py", "exec")
        exec(f"{mended}\n{checks}", {})
        with pytest.raises(Exception):  # noqa: B017 - whatever a broken function raises
            exec(f"{broken}\n{checks}", {})


def repaired(task, library):
    """Return the verdict for a library that replaces the task's."""
    return in_shell(task, f"cat > library.py <<'EOF'\n{library}\nEOF", name="bug_repair")


@needs_isolation
@pytest.mark.slow
def test_code_cannot_inspect_the_verifier():
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
def test_unchanged_code_scores_zero_and_new_failures_are_subtracted():
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
def test_output_of_tests_contains_no_paths():
    task = source_of("bug_repair").task(0)
    left = iter(
        [
            assistant("", ToolCall("shell", '{"command": "python3 test_library.py"}')),
            assistant("", ToolCall("shell", '{"command": "echo def > library.py; python3 test_library.py"}')),
            assistant("done"),
        ]
    )
    make = functools.partial(environment_of, "bug_repair")
    turns = asyncio.run(play_with_policy(make, task, lambda *_: next(left), seed=7)).trajectory.turns
    texts = [turn.observation[0].text for turn in turns[:2]]
    assert "should be" in texts[0]
    assert "library.py, line 1" in texts[1]
    assert not any("/" in text or "Traceback" in text for text in texts)


def test_injected_bug_is_one_change():
    draw = random.Random(0)
    for source in bug_repair._functions().values():
        broken = bug_repair.broken_version(draw, source)
        assert broken != source
        assert compile(broken, "broken", "exec")
