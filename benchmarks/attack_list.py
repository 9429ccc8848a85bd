"""What foreign code tries: one list, which the tests of the sandbox and `benchmarks/attacks.py` both go through.

Each is Python that runs behind `HEADER`, and behind names of what there is to reach on the machine (`Reach`). What it has
done to the machine is seen from outside; `won()` is for what only it can know: that the kernel said yes.

Easy to get wrong: an attack that could not work anywhere. So each that is harmless to a machine without isolation is
marked `control`, aims at canaries alone, and is tried there, too. Numbers of system calls are those of x86-64.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """What there is on the machine, put there to be reached: canaries, all of the user who holds the sessions."""

    CANARY: str = "/nowhere/file"
    """A file, in a folder of its own, with an attribute."""
    SECRET: str = "/nowhere/secret"
    """A file everybody may read."""
    READABLE: str = "/nowhere/readable"
    """A file in the folder of this Python, which foreign code may read."""
    PID: int = 0
    """A process that does nothing."""
    HOST: int = 0
    """The process that holds the sessions."""
    SERVER: int = 0
    """The fork server."""
    PORT: int = 0
    """Where somebody listens on loopback, for connections and for datagrams."""
    ABSTRACT: str = "\\0whetstone-nowhere"
    """An abstract socket that takes connections."""
    NAMED: str = "/nowhere/stream"
    """A socket with a path that takes connections."""
    DATAGRAMS: str = "/nowhere/datagrams"
    """One that takes datagrams."""
    NEIGHBOUR: str = "/nowhere/folder"
    """The folder of another session, where it lies on the machine."""
    NEIGHBOUR_PID: int = 0
    """The first process of another session, as the machine numbers it."""
    MARK: str = "it worked"
    """What `won` prints."""

    @property
    def code(self) -> str:
        """As Python."""
        return "".join(f"{name} = {value!r}\n" for name, value in asdict(self).items())


@dataclass(frozen=True, slots=True)
class Attack:
    """One way to do harm."""

    family: str
    name: str
    code: str
    control: bool
    """Whether it is harmless to a machine without isolation, where it has to be seen to work."""


HEADER = '''
import contextlib, ctypes, errno, fcntl, itertools, json, mmap, os, resource, signal, socket, struct, subprocess, sys
import threading, time
libc = ctypes.CDLL(None, use_errno=True)
PYTHON = sys.executable

def won(what=""):
    os.write(1, f"{MARK} {what}\\n".encode())

def ok(result):
    if result is None or result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def call(number, *arguments):
    return ok(libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))

def takes(number, *arguments):
    call(number, *arguments)
    won()

def told(path):
    with open(path, "rb") as file:
        os.write(1, file.read(1 << 16))

def every(*tries):
    failed = None
    for each in tries:
        try:
            each()
        except OSError as error:
            failed = error
    if failed:
        raise failed

def frames(*bodies):
    for body in bodies:
        for number in range(3, 20):
            with contextlib.suppress(OSError):
                os.write(number, body)

def framed(**answer):
    body = json.dumps(answer).encode()
    return struct.pack("!I", len(body)) + body

def machine(code):
    memory = mmap.mmap(-1, 4096, prot=7)
    memory.write(bytes.fromhex(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
'''

# What begins with "!" is not tried without isolation: it would harm the machine, or nothing there could be seen of it.
FAMILIES: dict[str, dict[str, str]] = {
    "files": {
        "reads a secret": "told(SECRET)",
        "reads by descriptor of a folder": "told(f'/proc/self/fd/{os.open(os.path.dirname(SECRET), os.O_RDONLY)}/secret')",
        "reads by a link": "os.symlink(SECRET, 'l'); told('l')",
        "reads by a hard link": "os.link(SECRET, 'h'); told('h')",
        "reads by a renamed folder": "os.symlink(os.path.dirname(SECRET), 'd'); os.rename('d', 'e'); told('e/secret')",
        "reads above the folder": "told('../' * 40 + SECRET)",
        "reads by /proc/self/root": "told('/proc/self/root' + SECRET)",
        "reads by /proc of the parent": "told(f'/proc/{os.getppid()}/root' + SECRET)",
        "reads by /proc of the host": "told(f'/proc/{HOST}/root' + SECRET)",
        "reads by the folder of the host": "told(f'/proc/{HOST}/cwd/' + '../' * 40 + SECRET)",
        "copies with the kernel's help": "f = os.open(SECRET, os.O_RDONLY); os.sendfile(1, f, 0, 4096)",
        "opens a handle": "!takes(304, -100, b'\\0' * 64, 0)",
        "opens with openat2": "how = struct.pack('QQQ', 0, 0, 0); f = call(437, -100, SECRET.encode(), how, 24); os.write(1, os.read(f, 4096))",
        "asks the shell": "subprocess.run(['/bin/sh', '-c', f'cat {SECRET}'], check=True)",
        "asks a program in the name of the parent": "subprocess.run(['/bin/cat', SECRET], check=True, start_new_session=True)",
        "asks the linker": "subprocess.run([PYTHON, '-c', f'print(open({SECRET!r}).read())'], env={'LD_PRELOAD': SECRET}, check=True)",
        "reads the passwords": "!os.write(1, open('/etc/shadow', 'rb').read()[:10]); won()",
        "writes to a file": "open(CANARY, 'w').write('x')",
        "adds to a file": "open(CANARY, 'a').write('x')",
        "truncates a file": "os.truncate(CANARY, 0)",
        "truncates in opening to read": "os.open(CANARY, os.O_RDONLY | os.O_TRUNC)",
        "maps a file to write": "f = os.open(CANARY, os.O_RDWR); mmap.mmap(f, 4)[:1] = b'x'",
        "removes a file": "os.unlink(CANARY)",
        "renames a file": "os.rename(CANARY, CANARY + '-')",
        "exchanges files": "open('mine', 'w').close(); takes(316, -100, b'mine', -100, CANARY.encode(), 2)",
        "moves a file to itself": "os.rename(CANARY, 'mine')",
        "plants a file": "open(os.path.dirname(CANARY) + '/planted', 'w').close()",
        "plants a folder": "os.mkdir(os.path.dirname(CANARY) + '/planted')",
        "plants a link": "os.symlink('/', os.path.dirname(CANARY) + '/planted')",
        "plants a pipe": "os.mkfifo(os.path.dirname(CANARY) + '/planted')",
        "plants beside, in the temporary folders": "every(*(lambda p=p: open(p, 'w').close() for p in (f'{os.path.dirname(os.path.dirname(CANARY))}/planted',)))",
        "writes into its Python": "open(READABLE, 'a').write('x')",
        "plants in its Python": "open(os.path.dirname(READABLE) + '/planted.py', 'w').close()",
        "renames in its Python": "os.rename(READABLE, READABLE + '-')",
        "links out of its Python": "os.link(READABLE, 'h'); open('h', 'a').write('x')",
        "replaces a system's program": "!open('/usr/bin/env', 'r+b').close(); won()",
        "reads what a neighbour has": "told(NEIGHBOUR + '/note')",
        "writes what a neighbour reads": "open(NEIGHBOUR + '/note', 'w').write('forged')",
        "lists what a neighbour has": "os.listdir(NEIGHBOUR); won()",
        "opens directories it was born with": "!for n in range(3, 256):\n    with contextlib.suppress(OSError):\n        f = os.open('.', os.O_RDONLY, dir_fd=n)\n        won(n)",
    },
    "attributes": {
        "changes a mode": "os.chmod(CANARY, 0o777)",
        "changes a mode by descriptor": "f = os.open(READABLE, os.O_RDONLY); os.fchmod(f, 0o777)",
        "changes a mode by a path of a descriptor": "f = os.open(READABLE, os.O_PATH); os.chmod(f'/proc/self/fd/{f}', 0o777)",
        "changes a mode by a new call": "call(452, -100, CANARY.encode(), 0o777, 0)",
        "changes the folder's mode": "os.chmod(os.path.dirname(CANARY), 0o777)",
        "changes its Python's mode": "os.chmod(READABLE, 0o777)",
        "changes times": "os.utime(CANARY, (7, 7))",
        "changes times by descriptor": "f = os.open(READABLE, os.O_RDONLY); os.utime(f, (7, 7))",
        "changes its Python's times": "os.utime(READABLE, (7, 7))",
        "gives a file away": "os.chown(CANARY, os.getuid(), os.getgid())",
        "sets an attribute": "os.setxattr(CANARY, 'user.planted', b'7')",
        "sets an attribute of its Python": "os.setxattr(READABLE, 'user.planted', b'7')",
        "sets an attribute by a new call": "value = ctypes.create_string_buffer(b'7'); call(463, -100, READABLE.encode(), 0, b'user.planted', struct.pack('QII', ctypes.addressof(value), 1, 0), 16)",
        "removes an attribute": "os.removexattr(CANARY, 'user.note')",
        "removes an attribute of its Python": "os.removexattr(READABLE, 'user.note')",
        "sets flags": "f = os.open(CANARY, os.O_RDONLY); ok(libc.ioctl(f, 0x40086602, struct.pack('l', 0x40)))",
        "sets flags of its Python": "f = os.open(READABLE, os.O_RDONLY); ok(libc.ioctl(f, 0x40086602, struct.pack('l', 0x40)))",
        "sets flags of a folder of its Python": "f = os.open(os.path.dirname(READABLE), os.O_RDONLY); ok(libc.ioctl(f, 0x40086602, struct.pack('l', 0x40)))",
        "sets the version of its Python": "f = os.open(READABLE, os.O_RDONLY); ok(libc.ioctl(f, 0x40087602, struct.pack('l', 7))); won()",
        "sets a project of its Python": "f = os.open(READABLE, os.O_RDONLY); ok(libc.ioctl(f, 0x401C5820, struct.pack('IIIII8x', 0x80, 0, 0, 0, 0)))",
        "sets flags by a new call": "call(469, -100, READABLE.encode(), struct.pack('QIIII', 0x80, 0, 0, 0, 0), 24, 0)",
        "seals its Python": "!f = os.open(READABLE, os.O_RDONLY); ok(libc.ioctl(f, 0x40806685, struct.pack('IIII112x', 1, 1, 4096, 0))); won()",
        "leases its Python": "f = os.open(READABLE, os.O_RDONLY); fcntl.fcntl(f, 1024, fcntl.F_RDLCK); won()",
        "leases a file": "f = os.open(CANARY, os.O_RDONLY); fcntl.fcntl(f, 1024, fcntl.F_RDLCK); won()",
        "watches a file": "n = ok(libc.inotify_init()); ok(libc.inotify_add_watch(n, CANARY.encode(), 4095)); won()",
        "watches a folder by a signal": "f = os.open(os.path.dirname(CANARY), os.O_RDONLY); fcntl.fcntl(f, 1026, 1); won()",
        "watches all": "!takes(300, 0, 0)",
    },
    "mounts and devices": {
        "mounts memory": "!ok(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)); won()",
        "mounts a folder on another": "!ok(libc.mount(b'/', b'/tmp', None, 4096, None)); won()",
        "mounts /proc anew": "!ok(libc.mount(b'proc', b'/proc', b'proc', 0, None)); won()",
        "makes the root writable": "!ok(libc.mount(None, b'/', None, 32 | 4096, None)); won()",
        "unmounts": "!every(*(lambda p=p: ok(libc.umount2(p, 2)) for p in (b'/proc', b'/tmp', b'/dev'))); won()",
        "opens a tree of mounts": "!takes(428, -100, b'/', 1)",
        "opens a file system": "!takes(430, b'tmpfs', 0)",
        "changes a mount": "!takes(442, -100, b'/', 0, struct.pack('QQQQ', 0, 1, 0, 0), 32)",
        "changes its root": "!ok(libc.chroot(b'.')); won()",
        "exchanges its root": "!takes(155, b'.', b'.')",
        "makes a device": "!os.mknod('d', 0o20666, os.makedev(1, 1)); won()",
        "makes a disk": "!os.mknod('d', 0o60666, os.makedev(254, 0)); open('d', 'rb').read(1); won()",
        "opens the machine's memory": "!every(*(lambda p=p: (open(p, 'rb').read(1), won()) for p in ('/dev/mem', '/dev/kmsg', '/dev/port', '/proc/kcore')))",
        "opens disks": "!every(*(lambda p=p: (open(p, 'rb').read(1), won()) for p in ('/dev/vda', '/dev/sda', '/dev/loop0', '/dev/nvme0n1')))",
        "opens the hypervisor": "!every(*(lambda p=p: (os.open(p, os.O_RDWR), won()) for p in ('/dev/kvm', '/dev/vhost-net', '/dev/fuse', '/dev/net/tun', '/dev/uinput')))",
        "takes terminals": "held = []\nwith contextlib.suppress(OSError):\n    while len(held) < 40: held.append(os.open('/dev/ptmx', os.O_RDONLY | os.O_NOCTTY))\nif len(held) > 8: won(len(held))",
        "lists terminals": "![n for n in os.listdir('/dev/pts') if n.isdigit()] and won()",
        "speaks on the terminal": "!f = os.open('/dev/tty', os.O_RDWR); os.write(f, b'x'); won()",
        "types on the terminal": "!every(*(lambda n=n: (ok(libc.ioctl(n, 0x5412, b'x')), won()) for n in range(3)))",
        "types by a wide number": "!every(*(lambda n=n: (takes(16, n, 0x100005412, b'x')) for n in range(3)))",
        "sets a setting of the kernel": "!every(*(lambda p=p: (open(p, 'w').write('7'), won(p)) for p in ('/proc/sys/kernel/pid_max', '/proc/sys/vm/drop_caches', '/proc/sys/kernel/core_pattern', '/proc/sys/fs/file-max')))",
        "sets the kernel's settings of names": "!every(*(lambda p=p: (open(p, 'w').write('x'), won(p)) for p in ('/proc/sys/kernel/hostname', '/proc/sys/kernel/domainname')))",
        "pulls the trigger": "!open('/proc/sysrq-trigger', 'w').write('h'); won()",
        "writes to /sys": "!every(*(lambda p=p: (open(p, 'w').write('0'), won(p)) for p in ('/sys/kernel/mm/ksm/run', '/sys/power/state', '/sys/kernel/uevent_helper')))",
        "leaves its control group": "!every(*(lambda p=p: (open(p, 'w').write('0'), won(p)) for p in ('/sys/fs/cgroup/cgroup.procs', '/sys/fs/cgroup/memory/cgroup.procs', '/sys/fs/cgroup/pids/cgroup.procs')))",
        "reads the machine's addresses": "!if any(int(l.split()[0], 16) for l in open('/proc/kallsyms')): won()",
    },
    "processes": {
        "asks the host to end": "os.kill(PID, signal.SIGTERM)",
        "kills a process": "os.kill(PID, signal.SIGKILL)",
        "stops a process": "os.kill(PID, signal.SIGSTOP)",
        "kills by a thread": "call(234, PID, PID, 9)",
        "kills by a queue": "call(129, PID, 10, struct.pack('iii', 10, 0, -1) + bytes(116))",
        "kills by a descriptor": "f = call(434, PID, 0); signal.pidfd_send_signal(f, 9)",
        "kills by the owner of a pipe": "r, w = os.pipe(); fcntl.fcntl(r, 8, PID); fcntl.fcntl(r, 10, 9); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC); os.write(w, b'x')",
        "kills by a death of its parent": "!libc.prctl(1, 9); os.kill(os.getppid(), 9)",
        "signals the host": "!os.kill(HOST, 0); won()",
        "signals the server": "!os.kill(SERVER, signal.SIGSTOP)",
        "signals the neighbour": "!os.kill(NEIGHBOUR_PID, signal.SIGKILL)",
        "signals the supervisor": "!every(*(lambda s=s: os.kill(os.getppid(), s) for s in range(1, 65)))",
        "signals everybody": "!os.kill(-1, signal.SIGKILL)",
        "signals its group": "!os.kill(0, signal.SIGTERM)",
        "signals every number": "!for number in range(2, 40000):\n    if number not in (os.getpid(), os.getppid()):\n        with contextlib.suppress(OSError): os.kill(number, 9)",
        "traces a process": "ok(libc.ptrace(16, PID, 0, 0)); won()",
        "seizes a process": "ok(libc.ptrace(0x4206, PID, 0, 0)); won()",
        "traces its parent": "!ok(libc.ptrace(16, os.getppid(), 0, 0)); won()",
        "reads memory": "b = ctypes.create_string_buffer(8); v = struct.pack('QQ', ctypes.addressof(b), 8); takes(310, PID, v, 1, v, 1, 0)",
        "reads memory by a file": "!open(f'/proc/{PID}/mem', 'rb'); won()",
        "reads an environment": "told(f'/proc/{PID}/environ')",
        "reads a command line": "told(f'/proc/{PID}/cmdline')",
        "reads a map of memory": "open(f'/proc/{PID}/maps').read() and won()",
        "takes a descriptor": "!f = call(434, HOST, 0); takes(438, f, 1, 0)",
        "takes a descriptor by a path": "!every(*(lambda p=p: (os.listdir(f'/proc/{p}/fd'), won()) for p in (PID, HOST, SERVER, os.getppid())))",
        "compares descriptors": "!takes(312, PID, PID, 0, 0, 0)",
        "limits a process": "resource.prlimit(PID, resource.RLIMIT_FSIZE, (0, 0))",
        "limits its seconds": "resource.prlimit(PID, resource.RLIMIT_CPU, (100, 100))",
        "reads its limits": "resource.prlimit(PID, resource.RLIMIT_CPU); won()",
        "slows a process": "os.setpriority(os.PRIO_PROCESS, PID, 19)",
        "slows the user": "!os.setpriority(os.PRIO_USER, os.getuid(), 19)",
        "gives a process a policy": "os.sched_setscheduler(PID, os.SCHED_BATCH, os.sched_param(0))",
        "gives a process attributes": "call(314, PID, struct.pack('IIQiIQQQ', 48, 3, 0, 7, 0, 0, 0, 0), 0)",
        "gives a process a core": "os.sched_setaffinity(PID, [min(os.sched_getaffinity(0))])",
        "slows its files": "call(251, 1, PID, 3 << 13)",
        "slows the user's files": "!call(251, 3, os.getuid(), 3 << 13)",
        "puts it in a group": "!os.setpgid(PID, 0); won()",
        "offers it to be killed": "open(f'/proc/{PID}/oom_score_adj', 'w').write('1000')",
        "renames it": "open(f'/proc/{PID}/comm', 'w').write('planted')",
        "shares a core's cookie": "!takes(157, 62, 2, PID, 1, 0)",
        "runs before all others": "!os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); won()",
        "runs before all, by its nice": "!os.setpriority(os.PRIO_PROCESS, 0, -5); won()",
        "moves its memory": "!takes(256, PID, 8, struct.pack('Q', 1), struct.pack('Q', 1))",
        "advises its memory": "!f = call(434, PID, 0); takes(440, f, struct.pack('QQ', 0, 0), 1, 21, 0)",
        "is not ended by its session": "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        for s in range(1, 65):\n            with contextlib.suppress(OSError, ValueError): signal.signal(s, signal.SIG_IGN)\n        time.sleep(1000)\n    os._exit(0)",
        "leaves a thread without its first": "!if os.fork() == 0:\n    threading.Thread(target=time.sleep, args=(60,), daemon=False).start()\n    libc.syscall(60, 0)",
        "leaves the dead unburied": "for _ in range(6):\n    if os.fork() == 0: os._exit(0)",
        "forks without end": "!while True:\n    if os.fork() == 0: time.sleep(60)",
        "forks and never stands still": "!if os.fork() == 0:\n    while True:\n        with contextlib.suppress(OSError): os.fork()\n        if os.getpid() % 3 == 0: os._exit(0)",
        "forks in the shell": "!subprocess.run(['/bin/sh', '-c', 'b() { b | b & b; }; b'])",
        "starts threads without end": "!while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "adopts orphans": "libc.prctl(36, 1, 0, 0, 0)\nif os.fork() == 0:\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)\nos.wait()",
        "hides from the list": "!if os.fork() == 0:\n    libc.prctl(15, b') Z (', 0, 0, 0)\n    time.sleep(60)",
        "stops its children": "!if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)",
        "makes a child of its parent": "!takes(56, 0x8000 | 17, 0, 0, 0, 0) or os._exit(0)",
    },
    "to its beside": {
        "limits": "!resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (0, 0))",
        "seconds": "!resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
        "limits by number": "!ok(libc.prlimit(os.getppid(), 1, ctypes.byref((ctypes.c_uint64 * 2)(0, 0)), None))",
        "nice": "!os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "nice of the group": "!os.setpriority(os.PRIO_PGRP, 0, 19)",
        "nice of the user": "!os.setpriority(os.PRIO_USER, os.getuid(), 19)",
        "policy": "!os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
        "cores": "!os.sched_setaffinity(os.getppid(), [min(os.sched_getaffinity(0))])",
        "input and output": "!call(251, 1, os.getppid(), 3 << 13)",
        "input and output of the user": "!call(251, 3, os.getuid(), 3 << 13)",
        "a group of processes": "!os.setpgid(os.getppid(), 0)",
    },
    "carried over": {
        "limits": "!resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
        "all limits": "!for kind in range(16):\n    with contextlib.suppress(OSError, ValueError): resource.setrlimit(kind, (0, 0))",
        "nice": "!os.nice(5)",
        "group's nice": "!open('/proc/self/autogroup', 'w').write('19')",
        "policy": "!os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
        "cores": "!os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])",
        "input and output": "!call(251, 1, 0, 3 << 13)",
        "mode": "!os.chmod('.', 0o500)",
        "times": "!os.utime('.', (7, 7))",
        "attributes": "!os.setxattr('.', 'user.note', b'7')",
        "mask": "!os.umask(0o777)",
        "signals": "!for s in range(1, 65):\n    with contextlib.suppress(OSError, ValueError): signal.signal(s, signal.SIG_IGN)\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
        "an alarm": "!signal.setitimer(signal.ITIMER_REAL, 0.3)",
        "folder": "!os.makedirs('a/b'); os.chdir('a/b')",
        "its folder removed": "!os.rmdir(os.getcwd())",
        "environment": "!os.environ.update(PATH='/nowhere', LD_PRELOAD='x', PYTHONPATH='.'); libc.putenv(b'PATH=/nowhere')",
        "builtins": "!import builtins; builtins.sum = builtins.len = lambda *a: 13; json.dumps = None; sys.modules['math'] = None",
        "random numbers": "!import random; random.seed(7); random.random = lambda: 0.5",
        "files": "!for n in range(50): open(f'f{n}', 'w').write('left')",
        "files in every place": "!for p in ('/tmp', '/var/tmp', '/dev/shm', '/dev', '/run', '/', '/session', '/sandbox'):\n    with contextlib.suppress(OSError): open(f'{p}/left', 'w').close()",
        "folders as deep as they go": "!for n in range(1800):\n    os.mkdir('d')\n    os.chdir('d')\nopen('f', 'w').close()",
        "folders closed to their owner": "!os.makedirs('a/b'); open('a/b/c', 'w').close(); os.chmod('a/b', 0); os.chmod('a', 0o100)",
        "names that are no text": "!open(b'\\xff\\xfe\\n', 'w').close(); os.mkdir(b'-rf *'); os.mkdir(b'whetstone-removing-0')",
        "pipes and sockets in folders": "!os.mkfifo('p'); os.mkdir('s'); os.mkfifo('s/p')",
        "links round": "!os.mkdir('a'); os.symlink('..', 'a/b'); os.symlink('loop', 'loop'); os.symlink('/', 'root')",
        "a file open, and removed": "!f = open('gone', 'wb'); f.write(bytes(4 << 20)); f.flush(); os.unlink('gone')\nif os.fork() == 0: time.sleep(60)",
        "a folder somebody stands in": "!os.makedirs('w/x')\nif os.fork() == 0:\n    os.chdir('w/x')\n    while True:\n        with contextlib.suppress(OSError): os.mkdir(f'{time.time()}')",
        "memory in /dev/shm": "!open('/dev/shm/left', 'wb').write(bytes(1 << 20))",
        "semaphores": "!import multiprocessing; held = [multiprocessing.Semaphore(1) for _ in range(20)]",
        "what is shared by all": "!for p in ('/', '/tmp', '/var/tmp', '/dev', '/usr', '/etc', '/proc'):\n    with contextlib.suppress(OSError): os.chmod(p, 0)\n    with contextlib.suppress(OSError): os.utime(p, (7, 7))",
        "names of the world": "!every(lambda: ok(libc.sethostname(b'left', 4)), lambda: ok(libc.setdomainname(b'left', 4)))",
        "sizes of pipes": "!held = [os.pipe() for _ in range(80)]\nfor r, w in held:\n    with contextlib.suppress(OSError): fcntl.fcntl(r, 1031, 1 << 20)",
        "its mounts made private": "!ok(libc.unshare(0x20000)); won()",
        "a score for being killed": "!open('/proc/self/oom_score_adj', 'w').write('900')",
        "attributes of a process": "!every(*(lambda n=n, v=v: ok(libc.prctl(n, v, 0, 0, 0)) for n, v in ((4, 0), (36, 1), (29, 10**9), (26, 2), (41, 1), (57, 1))))",
        "a personality": "!ok(libc.personality(0x0040000)); won()",
        "a landlock of its own": "!f = call(444, struct.pack('QQQ', 0xFFF, 0, 0), 24, 0); call(446, f, 0)",
        "a filter of its own": "!call(157, 22, 2, struct.pack('HxxxxxxQ', 0, 0))",
    },
    "memory": {
        "takes all at once": "!bytearray(10**10)",
        "takes it bit by bit": "!x = []\nwhile True: x.append(bytearray(1 << 20))",
        "takes it in children": "!for _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(150 << 20); time.sleep(0.5); os._exit(0)\nfor _ in range(8): os.wait()",
        "maps more than there is": "!mmap.mmap(-1, 1 << 45)",
        "maps what is not counted": "!held = [mmap.mmap(-1, 64 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) for _ in range(100)]",
        "keeps it in a file without a name": "os.memfd_create('x'); won()",
        "keeps it in a secret file": "!takes(447, 0)",
        "shares it by number": "n = ok(libc.shmget(0, 4096, 0o1600)); won(); libc.shmctl(n, 0, None)",
        "keeps semaphores": "n = call(64, 0, 1, 0o1600); won(); call(66, n, 0, 0)",
        "keeps messages": "n = call(68, 0, 0o1600); won(); call(71, n, 0, 0)",
        "keeps a queue": "takes(240, b'whetstone-attack', 0o102, 0o600, 0); call(241, b'whetstone-attack')",
        "locks it": "!b = mmap.mmap(-1, 32 << 20); ok(libc.mlockall(3)); won()",
        "takes huge pages": "!mmap.mmap(-1, 2 << 20, flags=0x40022); won()",
        "keeps it in pipes": "!held = []\nwith contextlib.suppress(OSError):\n    while True:\n        held.append(os.pipe()); os.set_blocking(held[-1][1], False); os.write(held[-1][1], bytes(1 << 20))",
        "keeps it in sockets": "!held = []\nwith contextlib.suppress(OSError):\n    while True:\n        held.append(socket.socketpair()); held[-1][0].setblocking(False); held[-1][0].setsockopt(1, 7, 1 << 30); held[-1][0].send(bytes(8 << 20))",
        "sends descriptors in a circle": "!a, b = socket.socketpair()\nwith contextlib.suppress(OSError):\n    while True: socket.send_fds(a, [b'x'], [a.fileno(), b.fileno()])",
        "keeps it in the kernel's input and output": "!takes(206, 64, ctypes.byref(ctypes.c_ulong()))",
        "makes faults of its own": "takes(323, 1)",
        "asks for very many areas": "!held = []\nfor n in range(70000): held.append(ok(libc.syscall(9, 0, 4096, n % 2, 34, -1, 0)))",
        "recurses without end": "!sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        "a number without end": "!10 ** 10 ** 8",
    },
    "accounts of the user": {
        "watchers": "n = []\nwith contextlib.suppress(OSError):\n    while len(n) < 200: n.append(ok(libc.inotify_init()))\nwon() if len(n) > 100 else None\ntime.sleep(0.3)",
        "signals that wait": "!signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65)); n = 0\nwith contextlib.suppress(OSError):\n    while n < 200000:\n        call(129, os.getpid(), 40, struct.pack('iii', 40, 0, -1) + bytes(116)); n += 1\nwon(n) if n > 8192 else None",
        "descriptors": "!held = []\nwhile True: held.append(os.open('/dev/null', os.O_RDONLY))",
        "timers": "!t = ctypes.c_void_p(); n = 0\nwhile n < 100000 and libc.timer_create(1, None, ctypes.byref(t)) == 0: n += 1\nwon(n) if n > 8192 else None",
        "keys": "!takes(248, b'user', b'left', b'x', 1, -4)",
        "joins keys": "takes(250, 1, 0)",
        "asks for keys": "!takes(249, b'user', b'left', 0, -4)",
        "files until the disk is full": "!for n in itertools.count(): open(f'f{n}', 'wb').write(bytes(4 << 20))",
        "one file until it is too large": "!f = open('f', 'wb')\nwhile True: f.write(bytes(1 << 20))",
        "a million files": "!for n in itertools.count(): open(f'f{n}', 'w').close()",
        "a file that was promised": "!f = os.open('f', os.O_RDWR | os.O_CREAT); os.posix_fallocate(f, 0, 1 << 40)",
        "files with holes": "!for n in range(100): os.truncate(os.open(f'f{n}', os.O_RDWR | os.O_CREAT), 1 << 40)",
    },
    "network": {
        "connects": "socket.create_connection(('127.0.0.1', PORT), timeout=1)",
        "asks by HTTP": "import urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{PORT}', timeout=0.5)",
        "connects outside": "!socket.create_connection(('1.1.1.1', 80), timeout=1); won()",
        "sends a datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
        "sends a datagram of the sixth version": "!socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'x', ('::1', PORT))",
        "sends in opening": "!s = socket.socket(); s.sendto(b'x', 0x20000000, ('127.0.0.1', PORT))",
        "forges packets": "!socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); won()",
        "listens to the wire": "!socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3); won()",
        "asks the kernel for routes": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW); won()",
        "asks the hypervisor": "socket.socket(socket.AF_VSOCK); won()",
        "asks the kernel's cryptography": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET); won()",
        "asks by Bluetooth": "!socket.socket(31, socket.SOCK_RAW, 1); won()",
        "asks by old protocols": "!every(*(lambda n=n: (socket.socket(n, socket.SOCK_DGRAM), won(n)) for n in (4, 5, 6, 9, 12, 21, 29, 30, 35, 36, 39, 43, 44)))",
        "connects to an abstract name": "socket.socket(socket.AF_UNIX).connect(ABSTRACT)",
        "connects to a path": "socket.socket(socket.AF_UNIX).connect(NAMED)",
        "sends to a path": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', DATAGRAMS)",
        "sends to a path from a pair": "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', DATAGRAMS)",
        "sends to a path from a raw pair": "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW); a.sendto(b'x', DATAGRAMS)",
        "sends a message to a path from a pair": "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendmsg([b'x'], [], 0, DATAGRAMS)",
        "sends its descriptors to a path": "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendmsg([b'x'], [(1, 1, struct.pack('i', 0))], 0, DATAGRAMS)",
        "binds a pair to an abstract name": "a, b = socket.socketpair(); a.bind('\\0whetstone-attack'); won()",
        "listens": "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); won()",
        "listens by a path": "s = socket.socket(socket.AF_UNIX); s.bind('s'); s.listen(); won()",
        "looks up names": "!socket.getaddrinfo('example.com', 80); won()",
        "connects in a ring": "takes(425, 1, bytes(120))",
        "connects by the old way to call": "if machine('53b867010000bb01000000b90100000031d2cd805bc3') >= 0: won()",
        "connects by the third way to call": "!if machine('b829000040bf01000000be0100000031d20f05c3') >= 0: won()",
        "asks a program": "subprocess.run([PYTHON, '-c', f'import socket; socket.create_connection((\"127.0.0.1\", {PORT}), timeout=1)'], check=True)",
    },
    "kernel": {
        "programs of the kernel": "!takes(321, 0, bytes(128), 128)",
        "measures the kernel": "!takes(298, struct.pack('II', 1, 128) + bytes(120), 0, -1, -1, 0)",
        "namespaces of users": "if os.fork() == 0:\n    with contextlib.suppress(OSError): ok(libc.unshare(0x10000000)); won()\n    os._exit(0)\nos.wait()",
        "namespaces, all of them": "!every(*(lambda f=f: (ok(libc.unshare(f)), won(f)) for f in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000)))",
        "namespaces by clone": "pid = call(56, 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0); won()",
        "namespaces by clone3": "pid = call(435, struct.pack('QQQQQQQQ', 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0); won()",
        "into a control group by clone3": "!takes(435, struct.pack('QQQQQQQQQQQ', 0x200000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 3), 88) or os._exit(0)",
        "joins a namespace": "!every(*(lambda p=p, n=n: takes(308, os.open(f'/proc/{p}/ns/{n}', os.O_RDONLY), 0) for p in (1, HOST, os.getppid()) for n in ('mnt', 'net', 'user', 'pid')))",
        "joins by a descriptor of a process": "!takes(308, call(434, os.getppid(), 0), 0x20000)",
        "another kernel": "!takes(246, 0, 0, 0, 0)",
        "another kernel by a file": "!takes(320, -1, -1, 0, b'', 0)",
        "modules": "!takes(175, b'x', 1, b'')",
        "modules by a file": "!takes(313, 0, b'', 0)",
        "restarts": "!takes(169, 0xFEE1DEAD, 672274793, 0, 0)",
        "sets the clock": "!takes(227, 0, struct.pack('qq', 7, 7))",
        "bends the clock": "!takes(159, struct.pack('I', 1) + bytes(204))",
        "names the machine": "!takes(170, b'x', 1)",
        "reads the log": "!takes(103, 3, ctypes.create_string_buffer(64), 64)",
        "writes accounts": "!takes(163, b'acct')",
        "swaps": "!takes(167, b'swap', 0)",
        "ports": "!takes(172, 3)",
        "segments": "takes(154, 0, ctypes.create_string_buffer(64), 64)",
        "quotas": "!takes(179, 0x80000100, b'/dev/vda', 0, 0)",
        "hangs up": "!takes(153)",
        "flushes every disk": "takes(162)",
        "a call that does not exist": "takes(999)",
        "a call with a negative number": "takes(-1)",
        "takes away its filter": "!takes(317, 0, 0, 0)",
        "allows itself all": "!p = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7FFF0000)); call(317, 1, 0, struct.pack('HxxxxxxQ', 1, ctypes.addressof(p))); takes(41, 1, 1, 0)",
        "listens to its own filter": "!p = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7FC00000)); takes(317, 1, 8, struct.pack('HxxxxxxQ', 1, ctypes.addressof(p)))",
        "a landlock that allows all": "!f = call(444, struct.pack('QQQ', 1, 0, 0), 24, 0); call(446, f, 0); told(SECRET)",
        "traces its child past the filter": "!pid = os.fork()\nif pid == 0:\n    ok(libc.ptrace(0, 0, 0, 0)); won(); os._exit(0)\nos.waitpid(pid, 0)",
        "wakes the speculation": "!ok(libc.prctl(53, 0, 2, 0, 0))",
        "core scheduling": "!takes(157, 62, 1, 0, 0, 0)",
        "reads the vdso as a file": "!told('/proc/self/auxv')",
    },
    "privilege": {
        "becomes root": "!os.setuid(0); os.getuid() == 0 and won()",
        "becomes root in three ways": "!every(lambda: os.setreuid(0, 0), lambda: os.setresuid(0, 0, 0), lambda: os.seteuid(0)); os.geteuid() == 0 and won()",
        "becomes somebody": "!every(lambda: os.setuid(os.getuid() + 1), lambda: os.setgid(os.getgid() + 1)); won()",
        "joins groups": "!os.setgroups([0]); won()",
        "is root": "!os.getuid() == 0 and won()",
        "has capabilities": "!d = ctypes.create_string_buffer(24); call(125, struct.pack('II', 0x20080522, 0), d); any(struct.unpack('6I', d.raw)[:2]) and won()",
        "takes capabilities": "!call(126, struct.pack('II', 0x20080522, 0), struct.pack('6I', 1 << 21, 1 << 21, 0, 0, 0, 0)); won()",
        "raises ambient ones": "!takes(157, 47, 2, 21, 0, 0)",
        "keeps them": "!ok(libc.prctl(8, 1, 0, 0, 0)); os.setuid(0); won()",
        "may gain": "libc.prctl(39, 0, 0, 0, 0) == 0 and won()",
        "unsets what it may not gain": "!ok(libc.prctl(38, 0, 0, 0, 0)); won()",
        "runs a program of root": "r = subprocess.run(['/usr/bin/su', '-c', 'id'], capture_output=True, stdin=subprocess.DEVNULL)\nb'uid=0' in r.stdout and won()",
        "makes a program of root": "!import shutil; shutil.copy('/usr/bin/id', 'id'); os.chmod('id', 0o6755); b'euid=0' in subprocess.run(['./id'], capture_output=True).stdout and won()",
        "gives a program capabilities": "!open('p', 'w').close(); os.setxattr('p', 'security.capability', bytes.fromhex('0000000200002000000000000000000000000000')); won()",
        "maps users": "!every(lambda: open('/proc/self/uid_map', 'w').write('0 0 1'), lambda: open('/proc/self/setgroups', 'w').write('allow')); won()",
        "sets its bits": "!ok(libc.prctl(28, 0x2F, 0, 0, 0)); won()",
    },
    "the protocol": {
        "answers nonsense": "!frames(b'\\x00\\x00\\x00\\x10' + b'cos\\nsystem\\n(S\\'tr')",
        "answers without end": "!frames(struct.pack('!I', 2**32 - 1) + b'x')",
        "answers nothing, with a length": "!frames(struct.pack('!I', 100))\ntime.sleep(60)",
        "answers deeper than can be read": "!frames(struct.pack('!I', 200000) + b'[' * 200000)",
        "answers numbers that are none": "!b = b'{\"number\": 2, \"value\": NaN}'; frames(struct.pack('!I', len(b)) + b)",
        "answers a number too large": "!frames(framed(number=2, value=10**400))",
        "answers with pictures that are none": "!frames(framed(number=2, images=['%']))",
        "answers of another kind": "!frames(framed(number=2, value={}))",
        "answers of other kinds": "!frames(framed(number=2, error=5, exit_code='a'))",
        "answers another question": "!frames(framed(number=99, value='forged'))",
        "answers the next question": "!frames(framed(number=3, value='forged'))",
        "answers halves of pairs": "!frames(framed(number=2, value='\\ud800'))",
        "answers what is not text": "!b = b'{\"number\": 2, \"value\": \"\\xff\"}'; frames(struct.pack('!I', len(b)) + b)",
        "answers a time without end": "!frames(framed(number=2, value='x', cpu=1e308, seconds=-1e308))",
        "answers ever again": "!def flood():\n    while True: frames(framed(number=3, value='forged'))\nthreading.Thread(target=flood, daemon=True).start()",
        "answers from a child": "!if os.fork() == 0:\n    time.sleep(0.1)\n    while True: frames(framed(number=3, value='forged'))",
        "speaks for the supervisor": "!b = json.dumps({'swept': 0, 'survived': True, 'ended': 1, 'clean': True, 'died': 0, 'hello': 1}).encode(); frames(b)",
        "sends descriptors with its answer": "!for n in range(3, 20):\n    with contextlib.suppress(OSError):\n        s = socket.socket(fileno=n); [socket.send_fds(s, [b'x'], [0, 1, 2]) for _ in range(50)]",
        "closes all it was given": "!os.closerange(0, 256)",
        "closes what it answers by": "!os.closerange(3, 256)",
        "ends both directions": "!for n in range(3, 20):\n    with contextlib.suppress(OSError): ok(libc.shutdown(n, 2))",
        "reads what it is asked": "!for n in range(3, 20):\n    with contextlib.suppress(OSError):\n        os.set_blocking(n, False); os.read(n, 4096)",
        "never reads": "!for n in range(3, 20):\n    with contextlib.suppress(OSError): ok(libc.setsockopt(n, 1, 8, struct.pack('i', 1), 4))\ntime.sleep(60)",
        "gives its socket to nobody": "!for n in range(3, 20):\n    with contextlib.suppress(OSError): fcntl.fcntl(n, 8, os.getppid()); fcntl.fcntl(n, 10, 9); fcntl.fcntl(n, fcntl.F_SETFL, os.O_ASYNC)",
        "stays with its socket": "!if os.fork() == 0:\n    os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)\nos._exit(0)",
        "changes the code that answers": "!import gc, socket as s\nfor o in gc.get_objects():\n    if isinstance(o, s.socket): o.close()",
        "changes what reads": "!for f in sys._current_frames().values():\n    while f: f.f_globals.get('wire') and setattr(f.f_globals['wire'], 'frame', lambda m: b''); f = f.f_back",
    },
    "time": {
        "computes for ever": "!while True: pass",
        "computes in a C function": "!sum(itertools.repeat(1))",
        "computes in many": "!for _ in range(6):\n    if os.fork() == 0:\n        while True: pass\nos.wait()",
        "sleeps for ever": "!while True:\n    try: time.sleep(1000)\n    except BaseException: pass",
        "does not hear": "!for s in range(1, 65):\n    with contextlib.suppress(OSError, ValueError): signal.signal(s, signal.SIG_IGN)\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "stops itself": "!os.kill(os.getpid(), signal.SIGSTOP)",
        "waits where nobody wakes": "!if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)\nos.wait()",
        "waits in a fork of its own": "!if libc.vfork() == 0: time.sleep(60)",
        "waits for a pipe": "!os.mkfifo('p'); open('p')",
        "waits for a lock": "!l = threading.Lock(); l.acquire(); l.acquire()",
        "lifts its limit": "!resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\nwhile True: pass",
        "starts anew before its seconds are over": "!while True:\n    if os.fork(): os._exit(0)",
        "backtracks": "!import re; re.match('(a+)+$', 'a' * 40 + 'b')",
        "compiles for ever": "!eval('(' * 90 + '1' + ')' * 90 + '+1' * 5000000)",
        "ends at once": "!os._exit(7)",
        "ends itself by a fault": "!ctypes.string_at(0)",
        "ends itself by an abort": "!os.abort()",
        "ends politely": "!sys.exit(3)",
        "wakes up by an alarm": "!signal.alarm(1); time.sleep(60)",
    },
    "output": {
        "prints without end": "!while True: print('all work and no play')",
        "prints past its streams": "!while True: os.write(2, b'x' * 65536)",
        "prints in a child": "!if os.fork() == 0:\n    while True: os.write(1, b'x' * 65536)",
        "prints what is no text": "!os.write(1, bytes(range(256)) * 100)",
        "prints what a terminal obeys": "!print('\\x1b]0;x\\x07\\x1b[2J\\x9b31m\\u202e')",
        "prints one line without end": "!sys.stdout.write('x' * 10**7)",
        "closes its streams": "!os.close(0); os.close(1); os.close(2); print('x')",
        "gives its streams away": "!sys.stdout = sys.stderr = None; print('x')",
        "reads its input": "!input()",
        "a value without end": "!'x' * 10**7",
        "a value that lies": "!class Liar:\n    def __repr__(self): raise SystemExit('no')\nLiar()",
        "a value that never ends": "!class Endless:\n    def __repr__(self):\n        while True: pass\nEndless()",
        "a value that is no text": "!class Odd:\n    def __repr__(self): return '\\ud800' * 1000\nOdd()",
        "an error that lies": "!class Odd(Exception):\n    def __str__(self): return 1\nraise Odd",
        "an error without end": "!raise Exception('x' * 10**7)",
        "errors in a circle": "!a, b = Exception('a'), Exception('b'); a.__cause__, b.__cause__ = b, a\nraise a",
        "an error with very many lines": "!exec('\\n' * 100000 + 'raise Exception')",
        "a text that is no code": "!eval('\\0')",
    },
}  # fmt: skip

ATTACKS = tuple(
    Attack(family, name, text.removeprefix("!"), not text.startswith("!"))
    for family, attacks in FAMILIES.items()
    for name, text in attacks.items()
)


def family(name: str) -> dict[str, str]:
    """The attacks of a family by name."""
    return {attack.name: attack.code for attack in ATTACKS if attack.family == name}
