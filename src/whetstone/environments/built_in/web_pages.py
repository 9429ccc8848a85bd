"""The console of a web shop, operated by page actions, by API calls, or by both.

A page is text in one of three styles; its elements are numbered. An action is a kind, a target and sometimes a text,
the action space of GUI-R1:

    click 4 · select 3 shipped · type 5 gift · call find order 1042 · call set k7 status shipped · call save k7

A task changes fields of one record. Near pages need fewer page actions than calls, far ones more, so that an agent with
both has to choose, as in ToolCUA.

Rewards: `reward: {name: verdict, pays: score}` with `environment.score`: success; `efficiency`, success times the
shortest number of actions divided by the number of actions; or `action_match`, the rule reward of GUI-R1: the mean
agreement of the actions with the expert's in kind, target and text.

Ends: terminated when a record is saved; truncated after `max_steps`.

Source: GUI-R1, arXiv:2504.10458; ToolCUA. Pages, records and calls are original.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Literal

from whetstone.environments.built_in.game_base import PlainGame
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation
from whetstone.plugins import OptionError
from whetstone.seeding import derive_random
from whetstone.trajectory import Task

Interface = Literal["both", "pages", "calls"]
Style = Literal["outline", "html", "markdown"]
Element = tuple[str, str, str]
"""Element of a page: kind, label and value."""
STYLES: tuple[Style, ...] = ("outline", "html", "markdown")
CHOICES: Mapping[str, tuple[str, ...]] = {
    "dark": ("off", "on"),
    "alerts": ("off", "on"),
    "status": ("open", "packed", "shipped"),
    "plan": ("free", "plus", "pro"),
}
"""Values of the fields with a fixed choice."""
NOTES = ("-", "gift", "fragile", "urgent")
CITIES = ("Rome", "Oslo", "Lima", "Kyoto")
FIELDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "settings": {"dark": CHOICES["dark"], "alerts": CHOICES["alerts"]},
    "order": {"status": CHOICES["status"], "note": NOTES},
    "customer": {"plan": CHOICES["plan"], "city": CITIES},
}
"""Values of the fields of each kind of record that tasks ask for."""
_ROWS = 3
"""Number of records per page of a list."""
_MARKUP: Mapping[str, Mapping[str, str]] = {
    "outline": {
        "link": "[{n}] link {label}",
        "button": "[{n}] button {label}",
        "select": "[{n}] select {label}: {value}",
        "input": "[{n}] input {label}: {value}",
    },
    "html": {
        "link": '<a id="{n}">{label}</a>',
        "button": '<button id="{n}">{label}</button>',
        "select": '<select id="{n}" name="{label}">{value}</select>',
        "input": '<input id="{n}" name="{label}" value="{value}">',
    },
    "markdown": {
        "link": "- [{label}](#{n})",
        "button": "- **{label}** (#{n})",
        "select": "- {label} (#{n}): {value}",
        "input": "- {label} (#{n}): _{value}_",
    },
}


@functools.lru_cache(maxsize=64)
def build_records(seed: int) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the records of a console by name: key of the API, and fields.

    Args:
        seed: Determines values, keys and the order in lists.
    """
    draw = derive_random("web pages", seed)
    orders = [f"order {number}" for number in sorted(draw.sample(range(1001, 1100), 9))]
    customers = [f"customer {name}" for name in ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo")]
    keys = draw.sample(range(10, 100), 1 + len(orders) + len(customers))
    return {
        name: (f"k{key}", {field: draw.choice(values) for field, values in FIELDS[name.split()[0]].items()})
        for name, key in zip(["settings", *orders, *customers], keys, strict=True)
    }


class WebPages(PlainGame):
    """Game of one change in the console of a web shop.

    Args:
        max_steps: Number of actions after which the episode is truncated.
        score: Number that is the score: `success`, `efficiency`, or `action_match`.
    """

    name = "web_pages"
    instruction = (
        "Make the change and save it. Actions: click N, select N VALUE, type N TEXT, "
        "call find RECORD, call set KEY FIELD VALUE, call save KEY."
    )

    def __init__(
        self, *, max_steps: int = 12, score: Literal["success", "efficiency", "action_match"] = "success"
    ) -> None:
        self.max_steps, self.score = max_steps, score
        self.interface: Interface = "both"
        self.style: Style = "outline"
        self.seed = self.steps = self.calls = self.shortest = 0
        self.record = ""
        """Name of the record that the task changes."""
        self.wanted: dict[str, str] = {}
        self.page: tuple[str, int | str] = ("home", 0)
        """Home; a list, with the index of its first row; or a record, with its name."""
        self.form: dict[str, str] = {}
        """Fields that the page changes but has not saved."""
        self.found: dict[str, dict[str, str]] = {}
        """Fields that calls change but have not saved, by the name of each record that was found."""
        self.saved: dict[str, str] | None = None
        self.saved_record, self.match = "", 0.0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start at the home page; return the request and the page."""
        own = task.private
        self.interface, self.style, self.seed = own["interface"], own["style"], own["records"]
        self.record, self.wanted = own["record"], dict(own["wanted"])
        self.page, self.form, self.found, self.saved, self.saved_record = ("home", 0), {}, {}, None, ""
        self.steps, self.calls, self.match = 0, 0, 0.0
        self.shortest = min(map(len, self._plans()))
        return GameObservation(f"{own['request']}\n{self._seen()}")

    def act(self, command: str) -> GameObservation:
        """Execute an action and return the next page, or the answer of the call."""
        parts, expected = command.split(maxsplit=2) or [""], self.solve().split(maxsplit=2)
        kind, *rest = parts
        self.match += sum(map(str.__eq__, parts, expected)) / max(len(parts), len(expected))
        self.steps += 1
        self.calls += kind == "call"
        answer = self._call(command) if kind == "call" else self._operate(kind, *rest)
        late = self.steps >= self.max_steps
        if answer is None:
            text = "No such action here." if kind == "call" else f"No such action here.\n{self._seen()}"
            return GameObservation(text, 0.0, understood=False, truncated=late)
        if self.saved is not None:
            return GameObservation("Saved.", self._success(), terminated=True)
        return GameObservation(answer, 0.0, truncated=late)

    def verdict(self) -> Mapping[str, Any]:
        """Return success, both action rewards, and the number of actions and of calls."""
        success = self._success()
        numbers = {
            "success": success,
            "efficiency": success * self.shortest / max(self.steps, 1),
            "action_match": self.match / max(self.steps, self.shortest, 1),
        }
        return {
            **numbers,
            "success": bool(success),
            "score": numbers[self.score],
            "actions": self.steps,
            "calls": self.calls,
            "shortest": self.shortest,
        }

    def admissible(self) -> list[str]:
        """Return all clicks, choices, texts of the fields and calls that change something now."""
        known: list[str] = []
        if self.interface != "calls":
            for number, (kind, label, value) in enumerate(self._elements(), 1):
                if kind in ("link", "button"):
                    known.append(f"click {number}")
                else:
                    values = FIELDS[self._current().split()[0]][label]
                    verb = "select" if kind == "select" else "type"
                    known += [f"{verb} {number} {each}" for each in values if each != value]
        if self.interface != "pages":
            records = build_records(self.seed)
            known += [f"call find {name}" for name in records if name not in self.found]
            for name, changed in self.found.items():
                key, fields = records[name]
                for field, values in FIELDS[name.split()[0]].items():
                    present = changed.get(field, fields[field])
                    known += [f"call set {key} {field} {value}" for value in values if value != present]
                known.append(f"call save {key}")
        return known

    def solve(self) -> str:
        """Return the first action of the shortest plan from here; pages are preferred to calls of equal number."""
        return min(self._plans(), key=len)[0]

    def _plans(self) -> list[list[str]]:
        plans: list[Callable[[], Iterator[str]]] = []
        if self.interface != "calls":
            plans.append(copy.deepcopy(self)._plan_pages)
        if self.interface != "pages":
            plans.append(self._plan_calls)
        return [list(plan()) for plan in plans]

    def _plan_pages(self) -> Iterator[str]:
        """Yield the remaining page actions, and execute them on this copy."""
        listed, records = self.record.split()[0], list(build_records(self.seed))
        while self.saved is None:
            where, which = self.page
            elements = self._elements()
            if self._current() == self.record:
                command = self._next_edit(elements)
            elif self.record != "settings" and where == "home":
                command = _click(elements, f"{listed}s")
            elif where == listed:
                rows = [name for name in records if name.startswith(listed)]
                ahead = rows.index(self.record) - int(which)
                named = self.record if 0 <= ahead < _ROWS else "next" if ahead > 0 else "previous"
                command = _click(elements, named)
            else:
                command = _click(elements, "back")
            yield command
            self._operate(*command.split(maxsplit=2))

    def _next_edit(self, elements: Sequence[Element]) -> str:
        """Return the next page action on the form of the record: set the first wrong field, or save."""
        right = {**build_records(self.seed)[self.record][1], **self.wanted}
        for number, (kind, label, value) in enumerate(elements, 1):
            if kind in ("select", "input") and value != right[label]:
                return f"{'select' if kind == 'select' else 'type'} {number} {right[label]}"
        return _click(elements, "save")

    def _plan_calls(self) -> Iterator[str]:
        """Yield the remaining calls."""
        key, fields = build_records(self.seed)[self.record]
        if self.record not in self.found:
            yield f"call find {self.record}"
        present, right = {**fields, **self.found.get(self.record, {})}, {**fields, **self.wanted}
        for field in fields:
            if present[field] != right[field]:
                yield f"call set {key} {field} {right[field]}"
        yield f"call save {key}"

    def _operate(self, kind: str, target: str = "", text: str = "") -> str | None:
        """Execute a page action; return the next page, or None if the action is not possible."""
        elements = self._elements() if self.interface != "calls" else []
        if not target.isdecimal() or not 1 <= int(target) <= len(elements):
            return None
        shape, label, _ = elements[int(target) - 1]
        if shape in ("link", "button") and kind == "click" and not text:
            self._follow(label)
        elif kind == {"input": "type"}.get(shape, shape) and text and text in CHOICES.get(label, (text,)):
            self.form[label] = text
        else:
            return None
        return self._seen()

    def _follow(self, label: str) -> None:
        where, which = self.page
        if label == "save":
            self._save(self._current(), self.form)
            return
        self.form = {}  # a form that is left is not saved
        if label in ("next", "previous"):
            self.page = (where, int(which) + (_ROWS if label == "next" else -_ROWS))
        elif label == "back" and where == "record":
            rows = [name for name in build_records(self.seed) if name.split()[0] == str(which).split()[0]]
            self.page = (str(which).split()[0], rows.index(str(which)) // _ROWS * _ROWS)
        elif label == "back":
            self.page = ("home", 0)
        elif where == "home":
            self.page = (label.removesuffix("s"), 0)
        else:
            self.page = ("record", label)

    def _call(self, command: str) -> str | None:
        """Execute a call of the API; return its answer, or None if it is not possible."""
        _, verb, words = [*command.split(maxsplit=2), "", ""][:3]
        records = build_records(self.seed)
        if self.interface == "pages":
            return None
        if verb == "find" and words in records:
            key, fields = records[words]
            present = {**fields, **self.found.setdefault(words, {})}
            return f"{key}: {', '.join(f'{field} {value}' for field, value in present.items())}"
        key, field, value = [*words.split(maxsplit=2), "", ""][:3] if words else ("", "", "")
        name = next((name for name in self.found if records[name][0] == key), "")
        if verb == "save" and name and not field:
            self._save(name, self.found[name])
            return ""
        if verb != "set" or not name or field not in records[name][1]:
            return None
        if not value or value not in CHOICES.get(field, (value,)):
            return None
        self.found[name][field] = value
        return f"{key}: {field} {value}, not saved"

    def _save(self, record: str, changed: Mapping[str, str]) -> None:
        self.saved_record, self.saved = record, {**build_records(self.seed)[record][1], **changed}

    def _success(self) -> float:
        right = {**build_records(self.seed)[self.record][1], **self.wanted} if self.record else {}
        return float(self.saved_record == self.record and self.saved == right)

    def _current(self) -> str:
        """Return the record whose form is on the page; empty on a list."""
        where, which = self.page
        return {"home": "settings", "record": str(which)}.get(where, "")

    def _elements(self) -> list[Element]:
        """Return the elements of the page in the order of their numbers, from 1."""
        where, which = self.page
        records, current = build_records(self.seed), self._current()
        if not current:
            rows, first = [name for name in records if name.split()[0] == where], int(which)
            turned = [*(["previous"] if first else []), *(["next"] if first + _ROWS < len(rows) else [])]
            return [("link", label, "") for label in [*rows[first : first + _ROWS], *turned, "back"]]
        fields = {**records[current][1], **self.form}
        form = [("select" if field in CHOICES else "input", field, value) for field, value in fields.items()]
        other = [("link", "orders", ""), ("link", "customers", "")] if where == "home" else [("link", "back", "")]
        return [*other, *form, ("button", "save", "")]

    def _seen(self) -> str:
        if self.interface == "calls":
            return "console"
        markup = _MARKUP[self.style]
        lines = [
            markup[kind].format(n=number, label=label, value=value)
            for number, (kind, label, value) in enumerate(self._elements(), 1)
        ]
        return "\n".join([self._current() or f"{self.page[0]}s", *lines])


def _click(elements: Sequence[Element], label: str) -> str:
    """Return the click on the element with a label."""
    return f"click {1 + next(k for k, element in enumerate(elements) if element[1] == label)}"


class WebPagesTasks(GameTasks):
    """Task source of changes in consoles of a web shop.

    Level 1 changes a setting of the home page, level 2 one field of an order, level 3 both fields of a customer.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
        interface: Actions of the agent: `pages`, `calls`, or `both`.
        styles: Styles of pages, sampled uniformly: `outline`, `html` and `markdown`.
    """

    name = "web_pages"
    game = WebPages

    def __init__(
        self,
        *,
        seed: int = 0,
        levels: list[int] | None = None,
        interface: Interface = "both",
        styles: Sequence[Style] = STYLES,
    ) -> None:
        super().__init__(seed=seed, levels=levels)
        if not styles:
            raise OptionError("styles", "the list is empty; set one style or more")
        self.interface, self.styles = interface, tuple(styles)

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        console, style = draw.randrange(50), draw.choice(self.styles)
        kind = ("settings", "order", "customer")[level - 1]
        records = build_records(console)
        record = draw.choice([name for name in records if name.split()[0] == kind])
        fields = records[record][1]
        changed = list(fields) if level == 3 else [draw.choice(list(fields))]
        wanted = {field: draw.choice([v for v in FIELDS[kind][field] if v != fields[field]]) for field in changed}
        changes = " and ".join(f"{field} to {value}" for field, value in wanted.items())
        private = {
            "records": console,
            "record": record,
            "wanted": wanted,
            "style": style,
            "interface": self.interface,
            "request": f"Set {changes} in {record}.",
        }
        return Task("", "", private, {"kind": kind, "style": style})
