"""Data analysis with Python: a table in a file, and a question with a numeric answer."""

from __future__ import annotations

import csv
import io
from random import Random
from typing import Any

from whetstone.environments.built_in.scripted_tasks import Scripted, script_call, script_text
from whetstone.trajectory import Task

_COLUMNS = {"region": ("north", "south", "east", "west"), "product": ("tea", "coffee", "juice", "milk")}
_NUMBERS = ("units", "revenue")
_READ = "import csv\nrows = list(csv.DictReader(open('data.csv')))\n"


class TablesTasks(Scripted):
    """Task source of questions about a table in a file.

    Level 1 requires a sum, level 2 a sum under a condition, level 3 the largest sum of a group.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "tables"

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        rows: list[dict[str, Any]] = [
            {
                **{column: draw.choice(values) for column, values in _COLUMNS.items()},
                "units": draw.randint(1, 99),
                "revenue": draw.randint(100, 9999),
            }
            for _ in range(20 * level)
        ]
        number, column = draw.choice(_NUMBERS), draw.choice(list(_COLUMNS))
        value = draw.choice(_COLUMNS[column])
        if level == 1:
            question = f"What is the sum of {number}?"
            answer = sum(int(row[number]) for row in rows)
            code = f"print(sum(int(r['{number}']) for r in rows))"
        elif level == 2:
            question = f"What is the sum of {number} where {column} is {value}?"
            answer = sum(int(row[number]) for row in rows if row[column] == value)
            code = f"print(sum(int(r['{number}']) for r in rows if r['{column}'] == '{value}'))"
        else:
            question = f"Of the values of {column}, what is the largest sum of {number} any of them has?"
            answer = max(sum(int(r[number]) for r in rows if r[column] == v) for v in _COLUMNS[column])
            code = (
                f"print(max(sum(int(r['{number}']) for r in rows if r['{column}'] == v) "
                f"for v in set(r['{column}'] for r in rows)))"
            )
        written = io.StringIO()
        table = csv.DictWriter(written, [*_COLUMNS, *_NUMBERS], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        prompt = f"The file data.csv has the columns {', '.join([*_COLUMNS, *_NUMBERS])}. {question}"
        private = {
            "files": {"data.csv": written.getvalue()},
            "answer": str(answer),
            "script": [script_call("python", code=_READ + code), script_text(str(answer))],
        }
        return Task("", prompt, private, {"kind": ("sum", "condition", "group")[level - 1]})
