"""Customer service with a user who has tools: the fault can be in the user's phone or in the account.

The agent sees the account and can change it; the user sees the phone and can change it when instructed. Neither can do
the actions of the other (dual control). A task combines some of four faults of the phone and three of the account.

The user is a script. It states its number when asked, follows instructions in any words that name the setting and the
change, reports the state of the phone, and is satisfied only when the connection works. A change of a setting that was
not broken violates the policy, whatever the result. A repeated correct instruction changes nothing.

Ambiguous requests
    With `ambiguous_fraction`, a request states the number of the line and the text on the phone, except that an
    ambiguous one lacks one of them, which a fault requires (`private["missing"]`). A message to the user that neither
    instructs nor ends the conversation is a question, or several if it mentions several details; a question is relevant
    if its answer is the missing detail. The verdict counts both, for the reward `relevant_questions`.

Note:
    "do not turn the vpn off" is not an instruction to do so, nor is a question whether it is off.

Source: the idea is that of tau2-bench's telecom domain, arXiv:2506.07982; faults, tools and texts are original.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from whetstone.bounded_types import Share
from whetstone.environments.built_in.scripted_tasks import Scripted, script_call, script_text
from whetstone.environments.protocol import Reply
from whetstone.errors import ToolError
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

PHONE = {"airplane": "airplane mode on", "data": "mobile data off", "sim": "sim not seated", "vpn": "vpn on"}
"""Text on the phone, by fault."""
TOLD = {
    "airplane": "Turn airplane mode off.",
    "data": "Turn mobile data on.",
    "sim": "Put the sim card in again.",
    "vpn": "Turn the vpn off.",
}
"""Instruction with which the user repairs a fault; other words for the same change are accepted, too."""
_NAMED = {
    "airplane": re.compile(r"\b(?:air|aero)plane|\bflight mode"),
    "data": re.compile(r"\b(?:data|internet)\b"),
    "sim": re.compile(r"\bsim\b"),
    "vpn": re.compile(r"\bvpn\b"),
}
"""Pattern of the name of a fault's setting."""
_ORDER = re.compile(
    r"\b(?:turn|switch|set|put|make|take|pull|push|(?:de)?activate|(?:en|dis)able|disconnect|connect|re-?insert|insert"
    r"|re-?seat|remove|eject)\b"
)
_ON = re.compile(r"\b(?:on|activate|enable|connect)\b")
_OFF = re.compile(r"\b(?:off|deactivate|disable|disconnect)\b")
_OUT = re.compile(r"\b(?:out|remove|eject)\b")
_IN = re.compile(r"\b(?:in|into|again|back|re-?insert|insert|re-?seat)\b")
_NOT = re.compile(r"\b(?:not|never|without|nor)\b|n['’]t\b")
_NO_ORDER = re.compile(
    r"(?:is|are|was|has|have|did|does|do you|what|which|why|where|how|who)\b|(?:i|we)\b(?!.*\byou\b)"
)
"""Start of a question, or of a statement about the speaker; neither is an instruction."""
_CLAUSE = re.compile(r"[.!;:\n]|(?<=\?)|,|\b(?:and|then|but|also|or)\b")
_TRIES = re.compile(r"\b(?:try|test|check|works?|working|online|reload|refresh|restart|reboot)\b")
_SHOWS = re.compile(r"\b(?:shows?|see|display|screen|settings?|status|icons?)\b")
DETAILS = {"number": re.compile(r"\bnumber\b"), "phone": _SHOWS}
"""Pattern of a question, by the detail that its answer states; the user answers the first one of a message."""
ACCOUNT = {"suspended": "resume_line", "empty": "refill_data", "roaming": "allow_roaming"}
"""Tool that repairs a fault of the account."""
_STATES = {"suspended": ("active", "suspended"), "empty": ("5 gb", "0 gb"), "roaming": ("allowed", "blocked")}
_NAMES = ("Ann Lee", "Ben Cho", "Cleo Ray", "Dan Fox", "Eva Sun", "Finn Oak")


class _Line:
    """State of an episode that the agent's and the user's side share."""

    def __init__(self, task: Task) -> None:
        private = task.private
        self.number: str = private["number"]
        self.person: str = private["person"]
        self.faults: set[str] = set(private["faults"])
        self.at_first = frozenset(self.faults)
        self.collateral = 0
        self.looked_up = False
        self.content = False
        self.missing: list[str] | None = private.get("missing")
        self.questions = 0
        self.relevant: set[str] = set()
        """Missing details that the user was asked for and stated."""

    def count_questions(self, details: list[str]) -> None:
        """Count a message without instructions as a question per detail, at least one; the first one is answered."""
        self.questions += max(1, len(details))
        self.relevant |= set(details[:1]) & set(self.missing or ())

    def describe_phone(self) -> str:
        """Return the text on the phone."""
        displays = [words for fault, words in PHONE.items() if fault in self.faults]
        return ", ".join(displays) or "nothing special"

    def mend(self, fault: str) -> None:
        """Remove a fault; count the change of a setting that was not broken at the start."""
        self.faults.discard(fault)
        self.collateral += fault not in self.at_first

    def break_down(self, fault: str) -> None:
        """Add a fault and count it as an unnecessary change."""
        self.faults.add(fault)
        self.collateral += 1


def _line(episode: Episode) -> _Line:
    """Return the shared state of an episode; create it at the first call."""
    if "support" not in episode.shared:
        episode.shared["support"] = _Line(episode.task)
    line: _Line = episode.shared["support"]
    return line


class SupportDesk:
    """Tools of the agent over a customer's account.

    The tools are `find_account`, `resume_line`, `refill_data` and `allow_roaming`. They share the state of the episode
    with `SupportUser`.
    """

    effects = "read"

    def __init__(self) -> None:
        self._line: _Line | None = None

    def open(self, episode: Episode) -> None:
        """Load the state of the episode, which the user shares."""
        self._line = _line(episode)

    def find_account(self, number: str) -> str:
        """Look up an account by its number.

        Args:
            number: The phone number.
        """
        line = self._find_line(number)
        line.looked_up = True
        texts = {fault: states[fault in line.faults] for fault, states in _STATES.items()}
        return f"{line.person}, line {texts['suspended']}, data {texts['empty']}, roaming {texts['roaming']}"

    def resume_line(self, number: str) -> str:
        """Resume a suspended line.

        Args:
            number: The phone number.
        """
        return self._repair("suspended", number)

    def refill_data(self, number: str) -> str:
        """Give a line whose data is used up new data.

        Args:
            number: The phone number.
        """
        return self._repair("empty", number)

    def allow_roaming(self, number: str) -> str:
        """Allow a line for which it is blocked to roam.

        Args:
            number: The phone number.
        """
        return self._repair("roaming", number)

    def verdict(self) -> Mapping[str, Any]:
        """Return whether the connection works, the user agrees and nothing else changed."""
        assert self._line is not None
        line = self._line
        works = not line.faults
        counts = {"questions": line.questions, "relevant_questions": len(line.relevant)}
        return {
            "success": works and line.content and line.collateral == 0,
            "works": works,
            "user_content": line.content,
            "collateral": line.collateral,
            **(counts if line.missing is not None else {}),
        }

    def _find_line(self, number: str) -> _Line:
        assert self._line is not None
        if number != self._line.number:
            raise ToolError(f"there is no account {number}"[:60])
        return self._line

    def _repair(self, fault: str, number: str) -> str:
        line = self._find_line(number)
        if not line.looked_up:
            raise ToolError("look up the account first")
        line.mend(fault)
        return "done"


class SupportUser:
    """Scripted user with a phone, who follows instructions of the agent.

    Args:
        patience: Maximum number of replies of the user.
    """

    def __init__(self, *, patience: int = 14) -> None:
        self.patience = patience
        self._line: _Line | None = None
        self.greeting = ""
        self.answered = 0

    def open(self, episode: Episode) -> Reply:
        """Start the conversation with a description of the problem."""
        self._line, self.answered = _line(episode), 0
        return Reply(episode.task.private["greeting"])

    def answer(self, text: str) -> Reply:
        """Follow the instructions of a message and return the user's report."""
        assert self._line is not None
        line, lowered = self._line, text.lower()
        self.answered += 1
        if self.answered > self.patience:
            return Reply("I give up.", ended=True)
        instructions = parse_instructions(lowered)
        for fault, right in instructions.items():
            line.mend(fault) if right else line.break_down(fault)
        tries = _TRIES.search(lowered)
        if not line.faults and (instructions or tries):
            line.content = True
            return Reply("It works now, thank you.", ended=True)
        if instructions:
            return Reply("Done, but it does not work yet.")
        details = [detail for detail, question in DETAILS.items() if question.search(lowered)]
        line.count_questions(details)
        if "number" in details:
            return Reply(f"My number is {line.number}.")
        if "phone" in details:
            return Reply(f"It shows {line.describe_phone()}.")
        return Reply("It still does not work." if tries else "I do not understand.")

    def close(self) -> None:
        """Do nothing; the user has no resources."""


def parse_instructions(text: str) -> dict[str, bool]:
    """Parse the instructions about the phone in a lowercase text.

    Returns:
        Fault → whether the change of its setting is the right one.

    >>> parse_instructions("switch off airplane mode, and don't turn the vpn off. take the sim out and put it back in")
    {'airplane': True, 'sim': True}
    """
    instructions: dict[str, bool] = {}
    for sentence in re.split(r"(?<=[.!?;\n])", text):
        ordered, meant = False, ""  # the verb and the object of an instruction apply to the following clauses
        for clause in map(str.strip, _CLAUSE.split(sentence)):
            is_instruction = _NOT.search(clause) is None and _NO_ORDER.match(clause) is None
            ordered = is_instruction and (ordered or _ORDER.search(clause) is not None)
            named = [fault for fault, name in _NAMED.items() if name.search(clause)]
            about = named or ([meant] if meant and re.search(r"\bit\b", clause) else [])
            for fault in about if ordered else ():
                right = _right(fault, clause)
                instructions |= {} if right is None else {fault: right}
            meant = named[-1] if named else meant
    return instructions


def _right(fault: str, clause: str) -> bool | None:
    """Return whether an instruction changes a setting to the right value.

    None without a value.
    """
    if fault == "sim":
        return True if _IN.search(clause) else False if _OUT.search(clause) else None
    on, off = _ON.search(clause) is not None, _OFF.search(clause) is not None
    return None if on is off else off if fault in ("airplane", "vpn") else on


class SupportTasks(Scripted):
    """Task source of 1, 2 and 3 simultaneous faults at levels 1, 2 and 3.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
        ambiguous_fraction: Fraction of requests that lack one detail, which the agent must ask for; the others state
            all details. Null: no request states details.
        milestones: Whether training tasks have milestones, for the reward `milestones`: the number is known, the
            account looked up, each fault of the account repaired, the text on the phone known, the connection works.
    """

    name = "support"

    def __init__(
        self,
        *,
        seed: int = 0,
        levels: list[int] | None = None,
        ambiguous_fraction: Share | None = None,
        milestones: bool = False,
    ) -> None:
        super().__init__(seed=seed, levels=levels)
        self.ambiguous_fraction, self.milestones = ambiguous_fraction, milestones

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        faults = draw.sample([*PHONE, *ACCOUNT], level)
        number = "".join(str(draw.randint(0, 9)) for _ in range(6))
        private: dict[str, Any] = {
            "number": number,
            "person": draw.choice(_NAMES),
            "faults": faults,
            "greeting": draw.choice(("My phone has no internet.", "I am offline.", "Nothing loads on my phone.")),
        }
        sides = ("phone" if set(faults) & set(PHONE) else "", "account" if set(faults) & set(ACCOUNT) else "")
        tags = {"kind": " and ".join(filter(None, sides))}
        unstated = list(DETAILS)
        if self.ambiguous_fraction is not None:
            required = ["phone" if side == "phone" else "number" for side in sides if side]
            unstated = [draw.choice(required)] if draw.random() < self.ambiguous_fraction else []
            private = state_details({**private, "missing": unstated})
            tags["request"] = "ambiguous" if unstated else "complete"
        script = [script_text("What is your number?")] if "number" in unstated else []
        script.append(script_call("find_account", number=number))
        script += [script_call(tool, number=number) for fault, tool in ACCOUNT.items() if fault in faults]
        script += [script_text("What does your phone show?")] if "phone" in unstated else []
        instructions = [script_text(words) for fault, words in TOLD.items() if fault in faults]
        private["script"] = [*script, *(instructions or [script_text("Please try again.")])]
        if self.milestones:
            called = ["find_account", *(tool for fault, tool in ACCOUNT.items() if fault in faults)]
            private["milestones"] = [
                *([{"says": "My number is"}] if "number" in unstated else []),
                *({"tool": tool, "arguments": {"number": number}} for tool in called),
                *([{"says": "It shows"}] if "phone" in unstated else []),
                {"says": "It works now"},
            ]
        return Task("", "", private, tags)


def state_details(private: Mapping[str, Any]) -> dict[str, Any]:
    """Return the private data of a task whose greeting states all details but the `missing` ones."""
    line = _Line(Task("", "", private))
    details = {"number": f"My number is {line.number}.", "phone": f"My phone shows {line.describe_phone()}."}
    stated = [text for detail, text in details.items() if detail not in private["missing"]]
    return {**private, "greeting": " ".join([private["greeting"], *stated])}
