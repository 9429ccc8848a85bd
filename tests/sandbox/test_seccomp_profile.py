"""Podman's seccomp profile with sockets of local processes and of the network only."""

import asyncio
import shutil
import socket
import subprocess

import pytest

from support.containers import needs_podman, write_rootfs
from whetstone.sandbox import ContainerOptions, ContainerPool
from whetstone.sandbox.containers.seccomp_profile import _PROFILES, limit_sockets, seccomp_arguments

RULES = [
    {"names": ["socketcall", "socketpair"], "action": "SCMP_ACT_ALLOW", "args": []},
    {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": None},
    {"names": ["read", "socket"], "action": "SCMP_ACT_ALLOW", "args": []},
]
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
int main(int count, char **words) {
    for (int i = 1; i < count; i++) printf("%d", socket(atoi(words[i]), SOCK_STREAM, 0) >= 0);
}
"""


def permits(profile, name, *values):
    """Return whether a profile permits a call, by the rules of the runtime."""
    compare = {"SCMP_CMP_EQ": lambda a, b: a == b, "SCMP_CMP_NE": lambda a, b: a != b}
    return any(
        name in rule["names"]
        and rule["action"] == "SCMP_ACT_ALLOW"
        and all(compare[each["op"]](values[each["index"]], each["value"]) for each in rule["args"] or [])
        for rule in profile["syscalls"]
    )


def test_only_local_and_network_families_are_permitted():
    original = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": RULES}
    limited = limit_sockets(original)
    for family in range(64):
        assert permits(original, "socket", family, 1, 0)
        assert permits(limited, "socket", family, 1, 0) == (family in (1, 2, 10, 16))
    assert not permits(limited, "socket", 16, 3, 9)  # audit
    assert permits(limited, "socketpair")
    assert permits(limited, "read")
    assert not permits(limited, "socketcall", 1)
    assert limited["defaultAction"] == "SCMP_ACT_ERRNO"
    assert len(RULES[2]["names"]) == 2


def test_docker_keeps_its_own_profile():
    assert seccomp_arguments("docker") == []


@needs_podman
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc: apt-get install gcc libc6-dev")
@pytest.mark.skipif(not any(path.is_file() for path in _PROFILES), reason="podman has no default profile here")
def test_no_socket_to_a_hypervisor_is_opened_in_a_container(tmp_path):
    root = write_rootfs(tmp_path / "root")
    words = ["gcc", "-static", "-x", "c", "-", "-o", str(root / "bin" / "sockets")]
    subprocess.run(words, input=PROGRAM.encode(), check=True)
    families = [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_VSOCK, socket.AF_ALG]

    async def opened():
        pool = ContainerPool(ContainerOptions(container="podman", rootfs=str(root)))
        try:
            return await pool.session().shell(f"sockets {' '.join(str(int(family)) for family in families)}")
        finally:
            pool.close()

    assert asyncio.run(opened()).output.strip() == "11100"
