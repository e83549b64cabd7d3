"""A network namespace of Linux in place of another machine, with a cable that can be cut (as root)."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

_LOST = "blackhole"  # a queue of the kernel that loses every packet, as `netem loss 100%` does


class NetworkNamespace:
    """A namespace with one network interface, connected to an interface of this namespace.

    host: the address on the other side. Needs the program `ip` and `tc` of Debian's iproute2.
    """

    def __init__(self) -> None:
        pid = os.getpid()
        self._name, self._ends = f"node{pid}", (f"near{pid}", f"far{pid}")
        network = f"198.18.{pid % 256}"  # reserved for tests of networks
        self.host = f"{network}.2"
        near, far = self._ends
        with contextlib.ExitStack() as on_error:
            _run("ip", "netns", "add", self._name)
            on_error.callback(self.close)
            _run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", self._name)
            _run("ip", "address", "add", f"{network}.1/24", "dev", near)
            _run("ip", "link", "set", near, "up")
            _run("ip", "-n", self._name, "address", "add", f"{self.host}/24", "dev", far)
            _run("ip", "-n", self._name, "link", "set", far, "up")
            _run("ip", "-n", self._name, "link", "set", "lo", "up")
            on_error.pop_all()

    def __enter__(self) -> NetworkNamespace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the namespace with its interfaces."""
        _run("ip", "netns", "delete", self._name)

    @property
    def command_prefix(self) -> list[str]:
        """The words before a command that run the command in the namespace."""
        return ["ip", "netns", "exec", self._name]

    @contextlib.contextmanager
    def partitioned(self) -> Iterator[None]:
        """Lose all packets in both directions. Connections stay open, and neither side is told."""
        near, far = self._ends
        _run("tc", "qdisc", "replace", "dev", near, "root", _LOST)
        _run("tc", "-n", self._name, "qdisc", "replace", "dev", far, "root", _LOST)
        try:
            yield
        finally:
            _run("tc", "qdisc", "delete", "dev", near, "root")
            _run("tc", "-n", self._name, "qdisc", "delete", "dev", far, "root")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
