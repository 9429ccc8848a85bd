"""Seccomp profile of podman, limited to sockets of local processes and of the network.

The default profile of podman 4 permits sockets to the hypervisor (`AF_VSOCK`), which reach the host of a virtual
machine even if the container has no network. Docker's default profile refuses them since version 23.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from whetstone.atomic_write import write_text
from whetstone.cache_dir import cache_dir

_PROFILES = (Path("/etc/containers/seccomp.json"), Path("/usr/share/containers/seccomp.json"))
"""Default profiles of podman; the first one that exists applies."""
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_AUDIT = 9
"""Protocol of netlink that podman's default profile refuses."""


def limit_sockets(profile: dict[str, Any]) -> dict[str, Any]:
    """Return a seccomp profile that permits only sockets of the families UNIX, INET, INET6 and NETLINK.

    The 32-bit call `socketcall`, whose family a profile cannot read, is refused.

    Args:
        profile: Profile in the JSON format of container runtimes; not changed.
    """
    rules = []
    for rule in profile["syscalls"]:
        names = [name for name in rule["names"] if name not in ("socket", "socketcall")]
        if names:
            rules.append({**rule, "names": names})
    for family in (_UNIX, _INET, _INET6, _NETLINK):
        conditions = [{"index": 0, "value": family, "op": "SCMP_CMP_EQ"}]
        if family == _NETLINK:
            conditions.append({"index": 2, "value": _AUDIT, "op": "SCMP_CMP_NE"})
        rules.append({"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": conditions})
    return {**profile, "syscalls": rules}


def seccomp_arguments(runtime: str) -> list[str]:
    """Return the arguments of `podman run` that apply the limited profile, which is stored in the cache folder.

    Args:
        runtime: `podman`, or `docker`, whose own profile stays.

    Returns:
        No arguments for Docker, and if podman's default profile is not found.
    """
    default = next((path for path in _PROFILES if path.is_file()), None)
    if runtime != "podman" or default is None:
        return []
    text = json.dumps(limit_sockets(json.loads(default.read_text(encoding="utf-8"))))
    path = cache_dir() / f"seccomp-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return ["--security-opt", f"seccomp={path}"]
