"""Commands of a container runtime: its properties, images, and the removal of containers of ended processes."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.errors import InfrastructureError, SandboxError
from whetstone.sandbox.containers.container_options import ContainerOptions

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

OWNER = "whetstone.owner"
"""Label of containers and images: the process that created them."""
PROGRAMS = ("podman", "docker")
_INSTALL = {"podman": "apt-get install podman runc", "docker": "apt-get install docker.io"}
_PROBE_SECONDS = 60.0
_BUILD_SECONDS = 1800.0
_MAX_NPROC = 4096
FIRST_USER, _USERS = 1_900_000_000, 65536
"""Range of user ids of this machine to which the users of containers are mapped if the runtime runs as root."""


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """Properties of an installed runtime."""

    version: str
    architecture: str
    """Architecture of images that it can run, such as `amd64`."""
    oci_runtime: str
    """Program that starts processes, such as `runc`."""
    cgroup_version: str
    missing_limits: tuple[str, ...]
    """Limits that it cannot enforce here: of `memory`, `pids` and `cpu`."""
    rootless: bool
    options: tuple[str, ...] = ()
    """Global options of the command."""
    problem: str = ""
    """Why containers cannot run here, with the remedy; empty if they can."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command of the runtime."""

    code: int
    output: bytes
    errors: str

    @property
    def error_line(self) -> str:
        """Return the last line of its error output, without the runtime's prefix."""
        lines = self.errors.strip().splitlines()
        return lines[-1].removeprefix("Error: ").strip() if lines else f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """Place of a running container on this machine."""

    name: str
    process: int
    """Process id of its first process; 0 if unknown."""
    upper: str
    """Folder with the files that it changed; "" if this process cannot read it."""
    merged: str
    """Folder at which its file system is mounted; "" if unknown."""
    workdir: str
    """Working directory of its image."""


class ContainerRuntime:
    """The command of podman or docker.

    Args:
        program: `podman` or `docker`.

    Raises:
        SandboxError: It is not installed, does not respond, or cannot enforce limits.
    """

    def __init__(self, program: str) -> None:
        self.program = program
        self.facts = probe_runtime(program)
        if self.facts.problem:
            raise SandboxError(f"{program}: {self.facts.problem}")
        if self.facts.missing_limits:
            missing = ", ".join(self.facts.missing_limits)
            raise SandboxError(f"{program}: cannot limit {missing} here; run it as root, or with control groups v2")

    def build_command(self, *arguments: str) -> list[str]:
        """Return the words of a command."""
        return [self.program, *self.facts.options, *arguments]

    def run(self, *arguments: str, data: bytes = b"", seconds: float = _PROBE_SECONDS) -> CommandResult:
        """Run a command and wait for it.

        Raises:
            SandboxError: It does not end in time.
        """
        try:
            done = subprocess.run(
                self.build_command(*arguments),
                input=data,
                capture_output=True,
                timeout=seconds,
                check=False,
                cwd=tempfile.gettempdir(),  # conmon writes a file `oom` into it
            )
        except subprocess.TimeoutExpired:
            raise SandboxError(
                f"{self.program} {arguments[0]}: no reply within {seconds:g} s; check the runtime"
            ) from None
        return CommandResult(done.returncode, done.stdout, done.stderr.decode(errors="replace"))

    async def call(self, *arguments: str, data: bytes = b"", seconds: float = _PROBE_SECONDS) -> CommandResult:
        """Run a command of an episode without blocking the event loop; see `run`.

        Raises:
            InfrastructureError: It does not end in time.
        """
        try:
            return await asyncio.to_thread(self.run, *arguments, data=data, seconds=seconds)
        except SandboxError as error:
            raise InfrastructureError(str(error)) from None

    def inspect_container(self, name: str) -> ContainerPlace:
        """Return the place of a container.

        Raises:
            InfrastructureError: The runtime does not know it.
        """
        inspected = self.run("container", "inspect", name)
        if inspected.code != 0:
            raise InfrastructureError(f"{self.program} inspect: {inspected.error_line}")
        facts: dict[str, Any] = json.loads(inspected.output)[0]
        data = (facts.get("GraphDriver") or {}).get("Data") or {}
        upper = data.get("UpperDir") or ""
        if not os.access(upper, os.R_OK | os.X_OK):
            upper = ""
        process, workdir = int(facts["State"].get("Pid") or 0), facts["Config"].get("WorkingDir") or "/"
        return ContainerPlace(name, process, upper, data.get("MergedDir") or "", workdir)

    def isolation_arguments(self) -> list[str]:
        """Return arguments of `run` and `build` that are equal for all containers: processes and users."""
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        nproc = _MAX_NPROC if hard == resource.RLIM_INFINITY else min(hard, _MAX_NPROC)
        return ["--ulimit", f"nproc={nproc}:{nproc}", "--ulimit", "core=0:0"]

    def user_arguments(self) -> list[str]:
        """Return arguments of `run` that map root of the container to an ordinary user of this machine.

        Docker maps users by a setting of its service.
        """
        if self.program == "docker" or self.facts.rootless:
            return []
        mapping = f"0:{FIRST_USER}:{_USERS}"
        return ["--uidmap", mapping, "--gidmap", mapping]

    # images

    def check_image(self, name: str) -> None:
        """Check that a local image exists and has the architecture of this machine.

        Raises:
            SandboxError: It does not.
        """
        architecture = self.image_architecture(name)
        if architecture is None:
            raise SandboxError(
                f"sandbox.image: {self.program} has no image {name}; images are not pulled: "
                f"`{self.program} pull {name}`, or `{self.program} import ROOTFS.tar {name}`"
            )
        if architecture and self.facts.architecture and architecture != self.facts.architecture:
            raise SandboxError(
                f"sandbox.image: {name} is for {architecture}, this machine is {self.facts.architecture}; "
                f"`{self.program} pull --platform linux/{self.facts.architecture} {name}`"
            )

    def image_architecture(self, name: str) -> str | None:
        """Return the architecture of a local image; None if there is no such image."""
        inspected = self.run("image", "inspect", "--format", "{{.Architecture}}", name)
        return inspected.output.decode().strip() if inspected.code == 0 else None

    def resolve_image(self, options: ContainerOptions, *, seconds: float = _BUILD_SECONDS) -> str:
        """Return the name of the image of a container; build or import it if there is none yet.

        Raises:
            SandboxError: It is missing, cannot be built, or is for another architecture.
        """
        if options.image:
            name = options.image
        elif options.build:
            name = self._build(Path(options.build).resolve(), network=options.build_network, seconds=seconds)
        else:
            name = self._import(Path(options.rootfs).resolve())
        self.check_image(name)
        return name

    def _build(self, folder: Path, *, network: str, seconds: float) -> str:
        file = next((folder / name for name in ("Containerfile", "Dockerfile") if (folder / name).is_file()), None)
        if file is None:
            raise SandboxError(f"sandbox.build: {folder} has no Containerfile and no Dockerfile")
        bases = [line.split()[-3 if " as " in line.lower() else -1] for line in _from_lines(file)]
        base_ids = [self.run("image", "inspect", "--format", "{{.Id}}", base).output.decode() for base in bases]
        content = f"{digest_folder(folder)} {' '.join(base_ids)} {network}"
        name = f"localhost/whetstone-build:{hashlib.sha256(content.encode()).hexdigest()[:24]}"
        if self.image_architecture(name) is not None:
            return name
        arguments = ["build", "-q", "-t", name, "-f", str(file), *self.isolation_arguments()]
        arguments += ["--ulimit", "nofile=1024:1024", "--network", "none" if network == "none" else "host"]
        if self.program == "podman":
            arguments += ["--pull=never", "--http-proxy=false"]
        built = self.run(*arguments, str(folder), seconds=seconds)
        if built.code != 0:
            raise SandboxError(f"sandbox.build: {file} cannot be built: {built.error_line[-600:]}")
        return name

    def _import(self, path: Path) -> str:
        if not path.exists():
            raise SandboxError(f"sandbox.rootfs: no folder or archive {path}")
        stamp = hashlib.sha256(f"{path} {path.stat().st_mtime_ns}".encode()).hexdigest()[:16]
        name = f"localhost/whetstone-rootfs:{stamp}"
        if self.image_architecture(name) is not None:
            return name
        source = f"tar -C {shlex.quote(str(path))} -c ." if path.is_dir() else f"cat {shlex.quote(str(path))}"
        # an imported file system names no programs' folders, as an image of a registry does
        change = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        importing = shlex.join(self.build_command("import", "-c", change, "-", name))
        done = subprocess.run(
            ["sh", "-c", f"{source} | {importing}"], capture_output=True, timeout=_BUILD_SECONDS, check=False
        )
        if done.returncode != 0:
            reason = CommandResult(done.returncode, b"", done.stderr.decode(errors="replace")).error_line
            raise SandboxError(f"sandbox.rootfs: {path} cannot be imported: {reason}")
        return name


def _from_lines(file: Path) -> list[str]:
    """Return the instructions of a Dockerfile that name a base image."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
    return [line for line in lines if line.lower().startswith("from ") and len(line.split()) > 1]


def digest_folder(folder: Path) -> str:
    """Return a digest of the names, modes and contents of all files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)}\0{path.lstat().st_mode}\0".encode())
        if path.is_symlink():
            digest.update(os.readlink(path).encode())
        elif path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def probe_runtime(program: str) -> RuntimeFacts:
    """Return the properties of a runtime; `problem` has the reason if it cannot be used."""
    if shutil.which(program) is None:
        return RuntimeFacts("", "", "", "", (), False, problem=f"not installed; {_INSTALL[program]}")
    form = "json" if program == "podman" else "{{json .}}"
    try:
        done = subprocess.run(
            [program, "info", "--format", form], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
        facts = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return RuntimeFacts("", "", "", "", (), False, problem=f"does not respond: {error}")
    if facts is None:
        reason = CommandResult(done.returncode, b"", done.stderr).error_line
        return RuntimeFacts("", "", "", "", (), False, problem=f"does not respond: {reason}")
    return parse_podman_facts(facts) if program == "podman" else parse_docker_facts(facts)


def describe_runtime(program: str) -> str:
    """Return the version of a runtime and the limits that it enforces here, or why it cannot be used."""
    facts = probe_runtime(program)
    if facts.problem:
        return facts.problem
    users = "rootless" if facts.rootless else "as root"
    enforced = [limit for limit in ("memory", "pids", "cpu") if limit not in facts.missing_limits]
    missing = f", cannot limit {', '.join(facts.missing_limits)}" if facts.missing_limits else ""
    return (
        f"{facts.version} with {facts.oci_runtime}, {facts.architecture}, {users}, "
        f"control groups v{facts.cgroup_version}, limits {', '.join(enforced) or 'nothing'}{missing}"
    )


def parse_podman_facts(facts: dict[str, Any]) -> RuntimeFacts:
    """Return the properties in the output of `podman info`.

    crun refuses machines with control groups of version 1, hybrid ones included; runc is used there.
    """
    host = facts["host"]
    controllers = host.get("cgroupControllers") or []
    version, name = str(host.get("cgroupVersion", "")).removeprefix("v"), host["ociRuntime"]["name"]
    rootless = bool(host.get("security", {}).get("rootless"))
    options: tuple[str, ...] = ()
    problem = ""
    if name == "crun" and version == "1":
        if shutil.which("runc"):
            name, options = "runc", ("--runtime", "runc")
        else:
            problem = "crun refuses control groups of version 1; apt-get install runc"
    missing = tuple(limit for limit in ("memory", "pids", "cpu") if limit not in controllers)
    return RuntimeFacts(facts["version"]["Version"], host["arch"], name, version, missing, rootless, options, problem)


def parse_docker_facts(facts: dict[str, Any]) -> RuntimeFacts:
    """Return the properties in the output of `docker info`."""
    if errors := facts.get("ServerErrors"):
        problem = f"does not respond: {errors[0].splitlines()[0]}"
        return RuntimeFacts("", "", "", "", (), False, problem=problem)
    names = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpu": "CpuCfsQuota"}
    missing = tuple(limit for limit, key in names.items() if not facts.get(key))
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(facts["Architecture"], facts["Architecture"])
    rootless = any("rootless" in option for option in facts.get("SecurityOptions") or [])
    return RuntimeFacts(
        facts["ServerVersion"], architecture, facts.get("DefaultRuntime", ""), str(facts.get("CgroupVersion", "")),
        missing, rootless,
    )  # fmt: skip


# ------------------------------------------------------------ removal of what ended processes left


def process_owner() -> str:
    """Return the label of this process: boot, namespace of process ids, id and start time."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        boot = "unknown"
    return f"{boot}/{_namespace()}/{os.getpid()}/{_start_time(os.getpid())}"


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]")
    except OSError:  # not Linux
        return "unknown"


def _start_time(process: int) -> str:
    """Return the start time of a process in clock ticks; "" if there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def has_owner_ended(owner: str) -> bool | None:
    """Return whether the process of a label has ended; None if it belongs to another machine or namespace."""
    boot, namespace, process, start = (*owner.split("/"), "", "", "", "")[:4]
    if (boot, namespace) != tuple(process_owner().split("/")[:2]):
        return None
    return not start or _start_time(int(process)) != start


def remove_leftover_containers(runtime: ContainerRuntime) -> int:
    """Remove containers and snapshots of processes that ended without removing them; return their number.

    Those of another machine, boot or process namespace are removed only if they do not run.
    """
    names = runtime.run("ps", "-aq", "--filter", f"label={OWNER}").output.decode().split()
    described = runtime.run("container", "inspect", *names).output if names else b"[]"
    left = []
    for facts in json.loads(described or b"[]"):
        ended = has_owner_ended(facts["Config"]["Labels"][OWNER])
        if ended or (ended is None and not facts["State"]["Running"]):
            left.append(facts["Id"])
    if left:
        runtime.run("rm", "-f", *left)
    listing = runtime.run("images", "-a", "--filter", f"label={OWNER}", "--format", "{{.ID}}")
    images = []
    for image in set(listing.output.decode().split()):
        label = runtime.run("image", "inspect", "--format", f'{{{{index .Config.Labels "{OWNER}"}}}}', image)
        if has_owner_ended(label.output.decode().strip()):
            images.append(image)
    if images:
        runtime.run("rmi", "-f", *images)
    return len(left) + len(images)


@functools.cache
def start_guard(program: str) -> subprocess.Popen[bytes]:
    """Start a process that removes all containers of this process when this process ends, however it ends.

    It waits for the end of its standard input, which this process holds open. After a kill, commands of the runtime may
    still be starting a container; the guard therefore removes containers several times.
    """
    label = shlex.quote(f"label={OWNER}={process_owner()}")
    script = (
        "if read line; then pauses=0; else pauses='0 1 2 4 8 15'; fi; "
        "for pause in $pauses; do sleep $pause; "
        f"ids=$({program} ps -aq --filter {label}); "
        f'if [ -n "$ids" ]; then {program} rm -f $ids; fi; '
        f"ids=$({program} images -aq --filter {label}); "
        f'if [ -n "$ids" ]; then {program} rmi -f $ids; fi; done'
    )
    guard = subprocess.Popen(
        ["sh", "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    atexit.register(end_guard, guard)
    return guard


def end_guard(guard: subprocess.Popen[bytes]) -> None:
    """Have the guard remove all containers of this process, and wait for it."""
    assert guard.stdin is not None
    with contextlib.suppress(OSError):
        guard.stdin.write(b"end\n")
        guard.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        guard.wait(timeout=_PROBE_SECONDS)
