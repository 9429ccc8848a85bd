"""What can an estimator ask for? Columns of a batch; each is one function that says its level, needs and provider.

    @column("turn", provided_by="…", requires=…)
    def novelty(batch: Columns) -> Iterable[float]: ...

`built_in.py` lists the built-in columns; a recipe adds others by `custom_columns: [my_package.signals:novelty]`.
"""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.learning.columns.batch import Columns
    from whetstone.learning.columns.built_in import COLUMN_BUILDERS, MODEL_COLUMNS, empty_column, from_record
    from whetstone.learning.columns.declaration import Column, RunCapabilities, by_name, column, declaration_of
    from whetstone.learning.columns.values import STATE_VALUES, VALUE_POSITIONS, critic_heads, kind_of_head

__getattr__, __dir__ = window(__name__)
__all__ = [
    "COLUMN_BUILDERS",
    "MODEL_COLUMNS",
    "STATE_VALUES",
    "VALUE_POSITIONS",
    "Column",
    "Columns",
    "RunCapabilities",
    "by_name",
    "column",
    "critic_heads",
    "declaration_of",
    "empty_column",
    "from_record",
    "kind_of_head",
]
