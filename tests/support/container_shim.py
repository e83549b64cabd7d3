"""The process beside a container, as containerd has one: makes its mounts and starts its processes.

python container_shim.py SPEC, in namespaces that `unshare` has made. It tells once the mounts are there, then
reads orders from stdin and answers each, with a line of JSON. What the machine does not permit is told as
"refused" with the call, and ends it with 77.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWPID = 0x20000000
SYS_PIVOT_ROOT, SYS_MOUNT_SETATTR = 155, 442  # x86_64
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
NOT_PERMITTED = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOSPC}
REFUSED = 77
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

libc = ctypes.CDLL(None, use_errno=True)


def called(name: str, result: int) -> None:
    """Raises OSError for a system call that failed; leaves where this machine does not permit it."""
    if result == 0:
        return
    number = ctypes.get_errno()
    if number in NOT_PERMITTED:
        refuse(f"{name}: {os.strerror(number)}")
    raise OSError(number, os.strerror(number), name)


def tell(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def refuse(what: str) -> NoReturn:
    tell(refused=what)
    sys.exit(REFUSED)


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, data: str = "") -> None:
    arguments = (source.encode(), str(target).encode(), kind.encode() or None, flags, data.encode() or None)
    called(f"mount {kind or source} on {target}", libc.mount(*arguments))


def make_read_only(folder: Path) -> None:
    """All mounts from there on."""
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY, 0, 0, 0)  # MOUNT_ATTR_RDONLY is 1, too
    size = ctypes.sizeof(attributes)
    result = libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, str(folder).encode(), AT_RECURSIVE, attributes, ctypes.c_size_t(size)
    )
    called(f"mount_setattr of {folder}", result)


def make_root(spec: dict[str, Any]) -> Path:
    """The container's file system from the image's own files and the machine's system folders."""
    root = Path(spec["root"])
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount(str(root), root, flags=MS_BIND | MS_REC)
    for folder in spec["system"]:
        inside = root / folder.lstrip("/")
        if os.path.islink(folder):  # noqa: PTH114 - /lib, on most systems
            if not inside.is_symlink():
                inside.symlink_to(os.readlink(folder))  # noqa: PTH115
            continue
        inside.mkdir(parents=True, exist_ok=True)
        mount(folder, inside, flags=MS_BIND | MS_REC)
    for folder, name in spec["volumes"].items():
        inside = root / name.lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        mount(folder, inside, flags=MS_BIND | MS_REC)
    for name in ("dev", "proc", *(path.lstrip("/") for path in spec["tmpfs"])):
        (root / name).mkdir(parents=True, exist_ok=True)
    mount("tmpfs", root / "dev", "tmpfs", MS_NOSUID, "mode=755,size=65536k")
    for name in DEVICES:
        (root / "dev" / name).touch()
        mount(f"/dev/{name}", root / "dev" / name, flags=MS_BIND)
    (root / "dev/shm").mkdir()
    if spec["read_only"]:
        make_read_only(root)
    # For builds, and because the kernel lets users mount one of their own only where they see this one.
    mount("/proc", root / "proc", flags=MS_BIND | MS_REC)
    mount("shm", root / "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, f"mode=1777,size={spec['shm']}")
    for path, options in spec["tmpfs"].items():
        data = ",".join(filter(None, ("mode=1777", options)))
        mount("tmpfs", root / path.lstrip("/"), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, data)
    return root


def bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def enter(root: Path) -> None:
    """From now on nothing else of the machine's files is in reach."""
    os.chdir(root)
    called("pivot_root", libc.syscall(SYS_PIVOT_ROOT, b".", b"."))
    called("umount2", libc.umount2(b".", MNT_DETACH))
    os.chdir("/")


def start(spec: dict[str, Any], command: list[str], environment: dict[str, str], **files: Any) -> Any:
    """A process as the container's user, with what that user may."""
    return subprocess.Popen(
        [*spec["become"], *command],
        cwd=spec["folder"],
        env={**spec["environment"], **environment},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        **files,
    )


def waited_for(process: Any, timeout_s: float) -> int | None:
    try:
        code: int = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    return code


def main() -> None:
    spec = json.loads(sys.argv[1])
    log = Path(spec["log"]).open("ab")  # noqa: SIM115 - out of reach from inside
    bring_up_loopback()
    enter(make_root(spec))
    if not spec["build"]:
        called("unshare CLONE_NEWPID", libc.unshare(CLONE_NEWPID))
    tell(entered=True)
    first = None
    for line in sys.stdin:
        order = json.loads(line)
        if order.get("first"):
            mount_proc = 'mount -t proc -o nosuid,nodev,noexec proc /proc || exit 77; exec "$@"'
            become = ["sh", "-c", mount_proc, "sh", *spec["become"]]
            first = start({**spec, "become": become}, order["command"], order["environment"], stdout=log)
            answer: dict[str, Any] = {"pid": first.pid}
        elif "wait" in order:
            answer = {"code": waited_for(first, order["wait"])}
        else:
            run = start(spec, order["command"], order["environment"], stdout=subprocess.PIPE)
            printed = run.communicate()[0].decode("utf-8", "replace")
            answer = {"code": run.returncode, "printed": printed}
        tell(**answer)
    if first is not None:
        first.kill()  # and with it whatever else is in its namespace
        first.wait()


if __name__ == "__main__":
    main()
