"""Which folder does `policy.path` mean? A folder, a kept model, one of the hub's; in this order."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from whetstone.errors import PolicyError, did_you_mean
from whetstone.policies.hub import fetched, is_hub_name
from whetstone.policies.kept import kept_models
from whetstone.policies.published import PUBLISHED


def found_model(path: Path | str, *, revision: str | None = None, trust_remote_code: bool = False) -> Path:
    """The folder a model is in; one of the hub's is fetched.

    Args:
        revision: Branch, tag or commit of one of the hub's; None: its main branch.

    Raises:
        PolicyError: There is none; the message has the nearest.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    name, kept = str(path), kept_models()
    if name in kept:
        return kept[name].folder
    if name in PUBLISHED:
        size = PUBLISHED[name].megabytes
        raise PolicyError(f"{name}: is not fetched yet; `whetstone models add {name}` does it ({size} MB)")
    if is_hub_name(name):
        return fetched(name, revision, trust_remote_code=trust_remote_code)
    beside = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
    named = {*kept, *PUBLISHED} if len(folder.parts) == 1 else set()
    near = get_close_matches(folder.name, {*beside, *named}, n=1)
    models = near or [p for p in beside if (folder.parent / p / "config.json").is_file()]
    raise PolicyError(f"{path}: no such model folder{did_you_mean(folder.name, {*models, *named})}")
