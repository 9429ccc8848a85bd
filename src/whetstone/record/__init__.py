"""Files of a run: its directory, its journal of trajectories, checkpoints, and their readers."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.record.checkpoint import (
        Checkpoints as Checkpoints,
        Position as Position,
        checkpoint_path as checkpoint_path,
        find_checkpoint as find_checkpoint,
        kept_checkpoint as kept_checkpoint,
        latest_checkpoint as latest_checkpoint,
        load_checkpoint as load_checkpoint,
        run_of_checkpoint as run_of_checkpoint,
    )
    from whetstone.record.finding import is_run as is_run
    from whetstone.record.episode_lines import stored_lines as stored_lines
    from whetstone.record.reader import RunRecord as RunRecord
    from whetstone.record.run_directory import (
        open_run_directory as open_run_directory,
        read_changes as read_changes,
        read_json as read_json,
        run_recipe as run_recipe,
        write_json as write_json,
    )
    from whetstone.record.run_store import RunStore as RunStore

__getattr__, __dir__ = export_lazily(__name__)
