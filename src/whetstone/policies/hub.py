"""Models on the Hugging Face hub, such as `Qwen/Qwen3-0.6B`: downloaded once, at one commit.

Note:
    A name refers to other weights tomorrow. A run is pinned to the commit at its start.
"""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars

from whetstone.errors import PolicyError, summarize_exception

disable_progress_bars()  # one bar per file would interrupt the run's own

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._/-]*)?")
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
"""Files of a model: weights as data, never pickles."""
_CODE = ["*.py"]
_SECONDS = 20.0
"""Timeout of a request to the hub."""


def is_hub_name(path: str) -> bool:
    """Return whether a path can only be a name on the Hugging Face hub.

    Such a name is `owner/model`, optionally with `@revision`. A path whose folder `owner` exists is not a hub name.
    """
    return _NAME.fullmatch(path) is not None and not Path(path).parent.is_dir()


def download_snapshot(name: str, revision: str | None, *, trust_remote_code: bool) -> Path:
    """Return the local folder of a hub model, downloaded if necessary.

    The name of the folder is the commit. Without a network, the last download is used.

    Args:
        name: `owner/model`, or `owner/model@revision`.
        revision: Branch, tag or commit if `name` has none; None: the main branch.
        trust_remote_code: Whether to download Python code of the model.

    Raises:
        PolicyError: If the model or revision does not exist, or cannot be downloaded.
    """
    name, _, named = name.partition("@")
    revision = named or revision
    wanted = [*_FILES, *(_CODE if trust_remote_code else [])]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, etag_timeout=_SECONDS))
    except GatedRepoError:
        remedy = "a gated model: accept its terms on its page, then log in (`hf auth login`)"
        raise PolicyError(f"{name}: {remedy}") from None
    except RevisionNotFoundError:
        raise PolicyError(
            f'{name}: the Hugging Face hub has no revision "{revision}" of it; use one of its branches, tags or commits'
        ) from None
    except RepositoryNotFoundError:
        raise PolicyError(
            f"{name}: neither a local folder nor a model on the Hugging Face hub; if it is private, log in "
            "(`hf auth login`)"
        ) from None
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
        why = summarize_exception(error.__cause__ or error, max_characters=160)
        raise PolicyError(
            f"{name}: no such local folder, and the Hugging Face hub cannot be reached ({why}); download it once "
            "with a network, or set a model folder"
        ) from None
