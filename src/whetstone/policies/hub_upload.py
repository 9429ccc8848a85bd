"""Upload of a prepared folder to a repository of the Hugging Face hub, in one commit.

A commit contains all files or none: an upload that fails leaves the repository as it was. The client library finds the
token (`hf auth login`, `HF_TOKEN`) and the address of the hub (`HF_ENDPOINT`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from whetstone.errors import PolicyError, summarize_exception

RepositoryKind = Literal["model", "dataset"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_WEIGHTS = re.compile(r"(?:base/.*|.*\.safetensors(?:\.index\.json)?|.*\.gguf|adapter_config\.json|Modelfile)")
"""Files of an earlier upload that another kind of weights does not overwrite, and that would be loaded with it."""
_KEPT = "nothing was uploaded, and nothing here has changed"
_MAX_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class HubTarget:
    """Repository that a folder is uploaded to, with the state in which it was found."""

    name: str
    """`owner/name`."""
    kind: RepositoryKind
    """Kind of repository."""
    user: str
    """Name of the account that the token belongs to."""
    exists: bool
    """Whether the repository exists."""
    private: bool
    """Whether the repository is private, or will be if it does not exist."""
    files: tuple[str, ...]
    """Paths of the files that it contains."""

    def replaced_files(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return the files of the repository that an upload of these paths overwrites."""
        return tuple(sorted({*self.files} & {*paths}))

    def removed_files(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return the weights of an earlier upload that an upload of these paths deletes."""
        if self.kind != "model":
            return ()
        return tuple(path for path in self.files if path not in paths and _WEIGHTS.fullmatch(path))


def check_repository_name(name: str) -> None:
    """Check the form of a repository name.

    Args:
        name: Name of the repository, `owner/name`.

    Raises:
        PolicyError: If it has another form.
    """
    if not _NAME.fullmatch(name):
        raise PolicyError(
            f"{name}: not a name of a repository on the Hugging Face hub; write OWNER/NAME with letters, digits, `.`, "
            "`_` and `-`, such as your-name/calculator"
        )


def find_target(name: str, kind: RepositoryKind, *, is_public: bool) -> HubTarget:
    """Check the token, and look a repository up; the hub is not changed.

    Args:
        name: `owner/name`.
        kind: Kind of repository.
        is_public: Whether the repository may be public.

    Raises:
        PolicyError: If there is no token, it is invalid or may only read, the hub cannot be reached, or the repository
            is public and `is_public` is not set.
    """
    check_repository_name(name)
    api = HfApi()
    with convert_hub_errors(name):
        account: dict[str, Any] = api.whoami()
        user = str(account.get("name", ""))
        token = (account.get("auth") or {}).get("accessToken") or {}
        if token.get("role") == "read":
            raise PolicyError(
                f"{name}: the token of {user} may only read the Hugging Face hub; {_KEPT}; create a token with write "
                "access and log in with it (`hf auth login`)"
            )
        try:
            info: Any = api.repo_info(name, repo_type=kind)
        except RepositoryNotFoundError:
            return HubTarget(name, kind, user, exists=False, private=not is_public, files=())
        files = tuple(each.rfilename for each in info.siblings or ())
    if not info.private and not is_public:
        raise PolicyError(f"{name}: is a public repository; {_KEPT}; add --public, or choose another name")
    return HubTarget(name, kind, user, exists=True, private=bool(info.private), files=files)


def upload_folder(folder: Path, target: HubTarget, *, message: str) -> str:
    """Upload all files of a folder in one commit, and return the address of the commit.

    A repository that does not exist is created. Weights of an earlier upload that are not overwritten are deleted in
    the same commit, see `HubTarget.removed_files`.

    Args:
        folder: Folder with the files.
        target: Result of `find_target`.
        message: Message of the commit.

    Raises:
        PolicyError: If the hub refuses the upload or cannot be reached.
    """
    api = HfApi()
    paths = list_upload_files(folder)
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd(path_in_repo=path, path_or_fileobj=str(folder / path)) for path in paths
    ]
    operations += [CommitOperationDelete(path_in_repo=path) for path in target.removed_files(paths)]
    with convert_hub_errors(target.name):
        if not target.exists:
            api.create_repo(target.name, repo_type=target.kind, private=target.private)
        done = api.create_commit(target.name, operations, commit_message=message, repo_type=target.kind)
    return str(done.commit_url)


def list_upload_files(folder: Path) -> list[str]:
    """Return the paths of all files of a folder, relative to it, in order."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def convert_hub_errors(name: str) -> Iterator[None]:
    """Convert an error of the hub or of the network into a one-line `PolicyError`.

    Args:
        name: Repository that the message names.
    """
    try:
        yield
    except LocalTokenNotFoundError:
        remedy = "log in (`hf auth login`), or set HF_TOKEN"
        raise PolicyError(f"{name}: there is no token for the Hugging Face hub; {remedy}") from None
    except HfHubHTTPError as error:
        raise PolicyError(f"{name}: {_describe_refusal(error)}; {_KEPT}") from None
    except HFValidationError as error:
        raise PolicyError(f"{name}: {summarize_exception(error, max_characters=_MAX_CHARACTERS)}; {_KEPT}") from None
    except OfflineModeIsEnabled:
        raise PolicyError(
            f"{name}: the Hugging Face hub is switched off (HF_HUB_OFFLINE); unset the variable"
        ) from None
    except (HTTPError, OSError, RuntimeError) as error:  # the client wraps a failed upload of a file in RuntimeError
        cause = error.__cause__ or error
        if isinstance(cause, HfHubHTTPError):
            raise PolicyError(f"{name}: {_describe_refusal(cause)}; {_KEPT}") from None
        why = summarize_exception(cause, max_characters=_MAX_CHARACTERS)
        raise PolicyError(f"{name}: the Hugging Face hub cannot be reached ({why}); {_KEPT}; try again") from None
    except ValueError as error:  # the hub rejected the header of README.md, or an answer is not JSON
        why = summarize_exception(error, max_characters=_MAX_CHARACTERS)
        raise PolicyError(f"{name}: the Hugging Face hub refused the upload ({why}); {_KEPT}") from None


def _describe_refusal(error: HfHubHTTPError) -> str:
    response: Any = error.response
    status = response.status_code if response is not None else 0
    if status == 401:
        return "the Hugging Face hub does not accept the token; log in again (`hf auth login`)"
    if status == 403:
        return (
            "the token may not write to this repository; name a repository of your account or organization, or create "
            "a token with write access"
        )
    why = error.server_message or summarize_exception(error, max_characters=_MAX_CHARACTERS)
    return f"the Hugging Face hub refused the upload (status {status}: {why[:_MAX_CHARACTERS]})"
