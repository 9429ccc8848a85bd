"""Archives of folders in environments of Harbor, packed and unpacked by the `tar` of the environment."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import IO, Any

from whetstone.errors import InfrastructureError
from whetstone.sandbox.archive_transfer import copy_untrusted, has_entries, max_archive_bytes
from whetstone.sandbox.limits import Limits
from whetstone.sandbox.protocol import Ending, Outcome
from whetstone.truncate_text import truncate_middle

SPARE_SECONDS = 30.0
"""Seconds that a provider may take longer than the time limit of its call."""
_COPY_SECONDS, _TAR_SECONDS = 600.0, 120.0


async def download_folder(environment: Any, folder: str, archive: IO[bytes], limits: Limits) -> Outcome:
    """Write the files, folders and links of a folder to a file of this machine as a tar archive.

    Raises:
        InfrastructureError: The environment has failed, or has no `tar`.
    """
    place, packed = shlex.quote(folder), f"/tmp/.{secrets.token_hex(8)}"
    # GNU tar returns 1 for a file that changes meanwhile; the archive is checked below
    pack = f"mkdir -p -- {place}; tar -C {place} -cf {packed} .; test $? -le 1 && wc -c < {packed}"
    if not (size := (await _run_tar(environment, pack)).strip()).isdecimal():
        return Outcome(Ending.ERROR, error="the workspace cannot be copied: tar has failed")
    if int(size) > max_archive_bytes(limits):
        return Outcome(Ending.DISK, error=f"the workspace has more than {limits.folder_mb} MiB")
    with tempfile.TemporaryDirectory() as local:
        file = Path(local) / "file"
        await limit_call(environment.download_file(packed, file), "download_file", _COPY_SECONDS)
        with file.open("rb") as source:
            return await asyncio.to_thread(copy_untrusted, source, archive, limits)


async def upload_archive(environment: Any, archive: IO[bytes], folder: str) -> Outcome:
    """Replace the contents of a folder by those of a tar archive, which is read from its start.

    Raises:
        InfrastructureError: The environment has failed, or has no `tar`.
    """
    place, packed = shlex.quote(folder), f"/tmp/.{secrets.token_hex(8)}"
    unpack = f"rm -rf -- {place}; mkdir -p -- {place}"
    if has_entries(archive):
        with tempfile.NamedTemporaryFile() as file:
            await asyncio.to_thread(shutil.copyfileobj, archive, file)
            file.flush()
            await limit_call(environment.upload_file(file.name, packed), "upload_file", _COPY_SECONDS)
        unpack += f" && tar -C {place} -xf {packed}; c=$?; rm -f {packed}; test $c -eq 0"
    if (await _run_tar(environment, f"({unpack}) && echo done")).strip() != "done":
        return Outcome(Ending.ERROR, error=f"{folder} cannot be written: tar has failed")
    return Outcome(Ending.OK)


async def _run_tar(environment: Any, command: str) -> str:
    """Return the output of a shell command that uses `tar`.

    Raises:
        InfrastructureError: The environment has failed, or has no `tar`.
    """
    call = f"command -v tar > /dev/null || exit 127; ({command}) 2> /dev/null"
    running = environment.exec(call, timeout_sec=int(_TAR_SECONDS))
    done = await limit_call(running, "exec", _TAR_SECONDS + SPARE_SECONDS)
    if done.return_code == 127:
        raise InfrastructureError("harbor: the environment has no tar, which grading requires; install it")
    return str(done.stdout or "")


async def limit_call(waiting: Awaitable[Any], name: str, seconds: float = 60 + SPARE_SECONDS) -> Any:
    """Return the result of a call of the provider.

    Args:
        waiting: The call.
        name: Name of the called method, for messages.
        seconds: Time limit.

    Raises:
        InfrastructureError: It fails or takes too long.
    """
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except Exception as error:  # providers raise their own types
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InfrastructureError(f"harbor: {name}: {truncate_middle(reason, 600)[0]}") from error
