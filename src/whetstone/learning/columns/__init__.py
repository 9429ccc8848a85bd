"""Columns that estimators can read from a batch, each declared by one function with its level and requirements.

    @column("turn", provided_by="…", requires=…)
    def novelty(batch: Columns) -> Iterable[float]: ...

`built_in.py` lists the built-in columns; a recipe adds others by `custom_columns: [my_package.signals:novelty]`.
"""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.learning.columns.batch import Columns as Columns
    from whetstone.learning.columns.built_in import (
        COLUMN_BUILDERS as COLUMN_BUILDERS,
        MODEL_COLUMNS as MODEL_COLUMNS,
        create_empty_column as create_empty_column,
        is_readable_from_record as is_readable_from_record,
    )
    from whetstone.learning.columns.declaration import (
        Column as Column,
        RunCapabilities as RunCapabilities,
        collect_columns as collect_columns,
        column as column,
        get_declaration as get_declaration,
    )
    from whetstone.learning.columns.values import (
        STATE_VALUES as STATE_VALUES,
        VALUE_POSITIONS as VALUE_POSITIONS,
        critic_heads as critic_heads,
        get_head_kind as get_head_kind,
    )

__getattr__, __dir__ = export_lazily(__name__)
