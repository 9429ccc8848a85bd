"""Resolution of `policy.path`: a folder, a stored model, or a model on the Hugging Face hub, in this order."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from whetstone.errors import PolicyError, did_you_mean
from whetstone.policies.hub import download_snapshot, is_hub_name
from whetstone.policies.local_models import stored_models
from whetstone.policies.model_catalog import PUBLISHED


def resolve_model_folder(path: Path | str, *, revision: str | None = None, trust_remote_code: bool = False) -> Path:
    """Return the local folder of a model; a hub model is downloaded.

    Args:
        path: Folder, name of a stored model, or name on the hub, in this order.
        revision: Branch, tag or commit on the hub; None: the main branch.
        trust_remote_code: Whether to download Python code of the model.

    Raises:
        PolicyError: If there is no such model; the message suggests the nearest name.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    name, stored = str(path), stored_models()
    if name in stored:
        return stored[name].folder
    if name in PUBLISHED:
        size = PUBLISHED[name].megabytes
        raise PolicyError(f"{name}: is not downloaded yet; run `whetstone models add {name}` ({size} MB)")
    if is_hub_name(name):
        return download_snapshot(name, revision, trust_remote_code=trust_remote_code)
    siblings = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
    named = {*stored, *PUBLISHED} if len(folder.parts) == 1 else set()
    near = get_close_matches(folder.name, {*siblings, *named}, n=1)
    models = near or [p for p in siblings if (folder.parent / p / "config.json").is_file()]
    raise PolicyError(f"{path}: no such model folder{did_you_mean(folder.name, {*models, *named})}")
