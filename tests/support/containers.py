"""Containers of tests: an image with busybox, made from the program of this machine."""

import functools
import io
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from whetstone.errors import SandboxError
from whetstone.sandbox.containers.container_runtime import ContainerRuntime

BUSYBOX = next((path for path in ("/bin/busybox", "/usr/bin/busybox") if os.path.exists(path)), "")


def _missing():
    """Return why containers cannot be tried here; empty if they can."""
    try:
        ContainerRuntime("podman")
    except SandboxError as error:
        return str(error)
    return "" if BUSYBOX else "busybox: apt-get install busybox-static"


MISSING = _missing()
needs_podman = pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")


def _archive():
    applets = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for folder in ("bin", "tmp", "root", "etc", "srv"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = os.path.getsize(BUSYBOX), 0o755
        with open(BUSYBOX, "rb") as program:
            archive.addfile(entry, program)
        for applet in {*applets} - {"busybox"}:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    return packed.getvalue()


@functools.cache
def busybox_image(architecture=""):
    """Return the name of an image with busybox and the working directory `/srv`, of another architecture if named."""
    assert shutil.which("podman")
    name = f"localhost/whetstone-test-image:{architecture or 'native'}"
    if subprocess.run(["podman", "image", "exists", name], check=False).returncode:
        arguments = ["-c", "WORKDIR /srv", "-c", "ENV PATH=/bin", *(["--arch", architecture] if architecture else [])]
        subprocess.run(["podman", "import", "-q", *arguments, "-", name], input=_archive(), check=True)
    return name


def containers_of(process):
    """Return the names of the containers of a process."""
    words = ["podman", "ps", "-a", "--filter", f"name=whetstone-{process}-", "--format", "{{.Names}}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def containers_left(process, before, seconds=60):
    """Return the containers of a process that are not removed within some seconds, without those of `before`.

    A closed session does not wait until its container is removed.
    """
    deadline = time.monotonic() + seconds
    while (left := set(containers_of(process)) - set(before)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def write_rootfs(folder: Path) -> Path:
    """Write the files of the image into a folder."""
    with tarfile.open(fileobj=io.BytesIO(_archive())) as archive:
        archive.extractall(folder, **({"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}))
    return folder
