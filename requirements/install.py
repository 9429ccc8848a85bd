"""Install the lock files of this directory, torch and the project into a virtual environment, with progress.

The locked packages come first (hashes required, no dependencies resolved), then torch in the build that `--torch`
names, then the project itself without dependencies and without build isolation. A run that was interrupted continues;
packages that were unpacked only in part are installed again. Needs nothing but the standard library.

Usage:
    python3 requirements/install.py                      dev, into .venv
    python3 requirements/install.py --venv PATH worlds   one more lock file
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BEGAN = time.monotonic()

LOCKS = {"dev": ("build", "base", "dev")}
"""Lock files of a set; any other set is the one file of its name."""

BUILT_FROM_SOURCE = ("worlds", "cluster", "fuzz")
"""Sets with packages that have no wheel on some platform. All others are installed from wheels only."""

HEARTBEAT_SECONDS = 20.0
"""Interval of progress lines if the output is not a terminal."""


class SetupError(Exception):
    """A problem with its remedy, in one line."""


def elapsed() -> str:
    """Format the time since the start as minutes:seconds."""
    seconds = int(time.monotonic() - BEGAN)
    return f"{seconds // 60}:{seconds % 60:02d}"


class Progress:
    """One step's progress: a line that is overwritten on a terminal, a line every 20 seconds elsewhere."""

    def __init__(self, title: str) -> None:
        self.title, self.detail = title, ""
        self.terminal = sys.stdout.isatty()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._beat, daemon=True)

    def _line(self) -> str:
        return f"{self.title}{self.detail and f': {self.detail}'} ({elapsed()})"

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the reader of the output is gone; the installation is not
            sys.stdout.write(text)
            sys.stdout.flush()

    def _beat(self) -> None:
        while not self.ended.wait(0.5 if self.terminal else HEARTBEAT_SECONDS):
            if self.terminal:
                width = shutil.get_terminal_size().columns - 1
                self._write(f"\r\033[K{self._line()[:width]}")
            else:
                self._write(f"{self._line()}\n")

    def __enter__(self) -> Progress:
        if not self.terminal:
            self._write(f"{self.title} ...\n")
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        if self.terminal:
            self._write("\r\033[K" + (f"{self.title}: done ({elapsed()})\n" if kind is None else ""))


def free_space(path: Path) -> str:
    """Name the free space of the file system of a path, which may not exist yet."""
    while not path.exists():
        path = path.parent
    return f"{shutil.disk_usage(path).free / 2**30:.1f} GiB free in {path}"


def explain(output: str, venv: Path) -> str:
    """Turn pip's or venv's output into a cause and a remedy, in one line.

    Returns:
        The line, or an empty string for an unknown cause.
    """
    is_full = venv.exists() and shutil.disk_usage(venv).free < 2**25  # ensurepip does not pass its cause on
    if is_full or re.search(r"No space left on device|Errno 28|Disk quota exceeded", output):
        temporary = Path(os.environ.get("TMPDIR", "/tmp"))
        return (
            f"the disk is full ({free_space(venv)}, {free_space(temporary)}); free 3 GiB, or choose other places "
            "with VENV=/path/of/environment and TMPDIR=/path, and run it again"
        )
    if "Read-only file system" in output or "Permission denied" in output:
        return f"{venv} cannot be written; choose another place: make setup VENV=/path/of/environment"
    if "DO NOT MATCH THE HASHES" in output:
        package = re.search(r"^\s+([^\s=]+)(?: from |==)", output.partition("HASHES")[2], re.M)
        return (
            f"a download of {package[1] if package else 'a package'} differs from its hash in requirements/; run "
            "`pip cache purge` and try again; if it stays, a mirror or proxy alters files"
        )
    if re.search(r"Network is unreachable|Name or service|name resolution|NewConnectionError|ConnectTimeout|ProxyError"
                 r"|SSLError|Read timed out|IncompleteRead|nodename nor servname", output):  # fmt: skip
        return "the package index cannot be reached; connect to the network (or set PIP_INDEX_URL) and run it again"
    if "No matching distribution found" in output:
        missing = re.search(r"No matching distribution found for (.+)", output)
        name = missing[1] if missing else "a package"
        return f"the index has no {name} for this Python and platform; use Python 3.11 to 3.13 (make setup PYTHON=...)"
    if re.search(r"command '?\S*(cc|gcc|g\+\+|clang)'? failed|Python\.h|[Nn]o such file or directory: '\S*cc'", output):
        return "a package without a wheel needs a C compiler; apt-get install build-essential python3-dev"
    return ""


def run(command: list[str], progress: Progress, venv: Path, lock: int | None, read: Callable[[str], None]) -> None:
    """Run a command, pass its lines to `read`, and append them to `setup.log` in the environment.

    The process inherits the lock: if this program is killed, the next one waits until the command has ended too.

    Raises:
        SetupError: The command failed.
    """
    environment = {**os.environ, "PIP_USER": "0", "PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        cwd=ROOT,
        pass_fds=() if lock is None else (lock,),
    )
    lines = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            read(line)
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        with contextlib.suppress(OSError), open(venv / "setup.log", "a") as log:
            log.writelines([f"$ {shlex.join(command)}\n", *lines])
    if code:
        output = "".join(lines)
        known = explain(output, venv)
        if not known:
            tail = [line for line in output.splitlines() if line.strip() and "is ignored" not in line][-12:]
            known = f"failed; the whole output is in {venv / 'setup.log'}\n" + "\n".join(f"    {line}" for line in tail)
        raise SetupError(known)


def install(progress: Progress, venv: Path, lock: int | None, total: int, arguments: list[str]) -> None:
    """Run pip and show which package it collects, then that it unpacks."""
    count = 0

    def read(line: str) -> None:
        nonlocal count
        words = line.split()
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            count += 1
            name = re.split(r"[=<>;@\[ ]", words[1] if words[0] == "Collecting" else words[3])[0]
            progress.detail = f"{min(count, total)} of {total}, {name}" if total else name
        elif line.startswith("Installing collected packages"):
            progress.detail = f"unpacking {total or ''} packages".replace("  ", " ")
        elif "Downloading" in line and "MB" in line and (size := re.search(r"\((\d+\.\d MB)\)", line)):
            progress.detail = f"{progress.detail.partition(' (')[0]} ({size[1]})"

    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--no-input", "--no-compile"]
    command += ["--progress-bar", "off"]
    run([*command, *arguments], progress, venv, lock, read)


def compile_bytecode(venv: Path) -> None:
    """Compile the installed modules on all processors; pip would use one. Tests of packages are left out.

    Files that are templates rather than modules do not compile, therefore the exit code is not looked at.
    """
    command = [str(venv / "bin" / "python"), "-m", "compileall", "-q", "-j", "0", "-x", r"[\\/]tests?[\\/]"]
    subprocess.run([*command, *map(str, venv.glob("lib/python*/site-packages"))], capture_output=True)


def remove_partial(venv: Path) -> None:
    """Remove records of packages that a killed pip unpacked in part, so that pip installs these again.

    pip writes RECORD last, and renames what it replaces to names that begin with a tilde.
    """
    for packages in venv.glob("lib/python*/site-packages"):
        for folder in packages.glob("*.dist-info"):
            if not (folder / "RECORD").is_file():
                shutil.rmtree(folder, ignore_errors=True)
        for folder in packages.glob("~*"):
            shutil.rmtree(folder, ignore_errors=True)


def create_environment(venv: Path, lock: int | None) -> None:
    """Create the virtual environment, or a new one in place of one that is broken or of another Python.

    Raises:
        SetupError: The standard library has no venv or ensurepip, or the place cannot be used.
    """
    version = "{}.{}".format(*sys.version_info)
    python = venv / "bin" / "python"
    if python.exists():
        question = "import sys, pip; print('{}.{}'.format(*sys.version_info))"
        answer = subprocess.run([str(python), "-c", question], capture_output=True, text=True)
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return
    if venv.exists():
        contents = {path.name for path in venv.iterdir()}
        if "pyvenv.cfg" not in contents and contents - {"bin", "include", "lib", "lib64", "setup.log"}:
            raise SetupError(f"{venv} exists and is not a virtual environment; choose another place with VENV=")
    try:
        import ensurepip  # noqa: F401
        import venv as _  # noqa: F401
    except ImportError:
        raise SetupError(
            f"Python {sys.version.split()[0]} ({sys.executable}) has no venv module; "
            f"apt-get install python{version}-venv (or python3-venv), or name another Python: make setup PYTHON=..."
        ) from None
    with Progress(f"setup: creating {venv} with Python {sys.version.split()[0]}") as progress:
        if venv.exists():
            shutil.rmtree(venv)
        venv.mkdir(parents=True)
        run([sys.executable, "-m", "venv", str(venv)], progress, venv, lock, lambda line: None)


@contextlib.contextmanager
def locked() -> Iterator[int | None]:
    """Hold a lock that lets one installation run at a time; a second one waits for the first."""
    with open(__file__) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("setup: another `make setup` is at work here; waiting until it has ended", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            yield None
            return
        yield file.fileno()


def count_requirements(files: list[Path]) -> int:
    """Count the pinned packages of lock files."""
    return sum(len(re.findall(r"^[A-Za-z0-9]\S*==", file.read_text(), re.M)) for file in files)


def fingerprint(files: list[Path], torch: str) -> str:
    """Hash what decides the contents of an environment: lock files, torch, the project's metadata."""
    contents = [path.read_bytes() for path in (*files, ROOT / "pyproject.toml")]
    return hashlib.sha256(b"\0".join([*contents, torch.encode(), str(ROOT).encode()])).hexdigest()


def set_up(name: str, venv: Path, torch: str) -> None:
    """Install one set into the environment, unless that was done already.

    Raises:
        SetupError: Something outside this program prevents it.
    """
    files = [HERE / f"{file}.txt" for file in LOCKS.get(name, (name,))]
    stamp = venv / (".ready" if name == "dev" else f".ready-{name}")
    wanted = fingerprint(files, torch if name == "dev" else "")
    with locked() as lock:
        if stamp.is_file() and stamp.read_text() == wanted and (venv / "bin" / "python").exists():
            os.utime(stamp)
            return
        if name == "dev":
            create_environment(venv, lock)
        stamp.unlink(missing_ok=True)
        remove_partial(venv)

        options = ["--require-hashes", "--no-deps", "--no-build-isolation"]
        options += [] if name in BUILT_FROM_SOURCE else ["--only-binary", ":all:"]
        steps = [("packages", count_requirements(files), [*options, *(f"--requirement={file}" for file in files)])]
        if name == "dev":
            steps += [("torch", 0, shlex.split(torch))] if torch else []
            steps += [("whetstone", 0, ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)])]
        for number, (title, total, arguments) in enumerate(steps, 1):
            title = title if name == "dev" else f"packages of requirements/{name}.txt"
            with Progress(f"setup: installing {title} ({number}/{len(steps) + 1})") as progress:
                install(progress, venv, lock, total, arguments)
        with Progress(f"setup: compiling modules ({len(steps) + 1}/{len(steps) + 1})"):
            compile_bytecode(venv)
        stamp.write_text(wanted)
    if name == "dev":
        print(f"setup: ready after {elapsed()} minutes, {free_space(venv)}", flush=True)


def main() -> int:
    """Read the command line and install; a user's problem ends with one line and exit code 2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", nargs="?", default="dev", choices=sorted(path.stem for path in HERE.glob("*.txt")))
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip installs as torch; empty for none")
    options = parser.parse_args()
    try:
        set_up(options.set, options.venv.absolute(), options.torch)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"setup: {explain(str(error), options.venv) or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("setup: interrupted; run `make setup` again to continue", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
