"""Where is a model that recipes name as the Hugging Face hub does, `Qwen/Qwen3-0.6B`? Fetched once, at one commit.

Easy to get wrong: a name means other weights tomorrow. A run is pinned to the commit that the name meant when it began.
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

from whetstone.errors import PolicyError, explained

disable_progress_bars()  # a file each, in the middle of the run's own

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._/-]*)?")
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
"""What a model is made of: weights that are data, never pickles."""
_CODE = ["*.py"]
_SECONDS = 20.0
"""Of a question to the hub."""


def is_hub_name(path: str) -> bool:
    """Whether it can only be meant as a name on the hub: `owner/model`, maybe with `@revision`, and no folder here is
    called `owner`."""
    return _NAME.fullmatch(path) is not None and not Path(path).parent.is_dir()


def fetched(name: str, revision: str | None, *, trust_remote_code: bool) -> Path:
    """The model's folder, whose name is its commit; fetched where it is not here yet. Without a network it is what was
    fetched before.

    Args:
        name: `owner/model`, or `owner/model@revision`.
        revision: Branch, tag or commit, where the name has none; None: its main branch.
        trust_remote_code: Whether code that comes with it is fetched, too.

    Raises:
        PolicyError: There is no such model or revision, or it cannot be had.
    """
    name, _, named = name.partition("@")
    revision = named or revision
    wanted = [*_FILES, *(_CODE if trust_remote_code else [])]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, etag_timeout=_SECONDS))
    except GatedRepoError:
        said = "its owners let in only who agreed to their terms: do so on its page, then log in (`hf auth login`)"
        raise PolicyError(f"{name}: {said}") from None
    except RevisionNotFoundError:
        raise PolicyError(f'{name}: the Hugging Face hub has no revision "{revision}" of it') from None
    except RepositoryNotFoundError:
        raise PolicyError(
            f"{name}: neither a folder here nor a model on the Hugging Face hub; where it is private, log in "
            "(`hf auth login`)"
        ) from None
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
        why = explained(error.__cause__ or error, max_characters=160)
        raise PolicyError(
            f"{name}: no such folder here, and the Hugging Face hub cannot be reached to fetch it ({why}); do it once "
            "with a network, or name a model folder"
        ) from None
