"""FRONT PROCESS: Triton's system shared memory: clients register regions of files in /dev/shm for tensors.

Files are read and written, not mapped: a client that truncates a mapped file would kill the server.
"""

from __future__ import annotations

import ipaddress
import os
import resource
import stat
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.errors import ServingError
from pipeline.messages.frames import Part

FOLDER = "/dev/shm"  # folder of shm_open on Linux
MAX_REGIONS = 512  # each has a file descriptor
_MAX_NAME_BYTES = 255


@dataclass(slots=True, eq=False)
class Region:
    """A region of a shared memory file that a client has registered: `byte_size` bytes at `offset`.

    The file `key` is open while the region is registered or in use.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    fd: int  # -1: closed
    _registered: bool = True
    _users: int = 0  # requests in flight with outputs in the region

    def document(self) -> dict[str, Any]:
        """Return the region as JSON, for a status request."""
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.byte_size}

    @property
    def is_open(self) -> bool:
        return self.fd >= 0

    def unregister(self) -> None:
        """Close the file, once no request uses the region."""
        self._registered = False
        self._close_unused()

    def acquire(self) -> None:
        """Keep the file open until `release`, because a request has outputs in the region."""
        self._users += 1

    def release(self) -> None:
        """Record that a request no longer uses the region.

        If the region is unregistered and no other request uses it, its file is closed.
        """
        self._users -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        if self.is_open and not self._registered and not self._users:
            os.close(self.fd)
            self.fd = -1


class Span:
    """The place of a tensor in shared memory: `size` bytes at `offset` of a region."""

    __slots__ = ("_offset", "region", "size")

    def __init__(self, region: Region, offset: int, size: int) -> None:
        self.region = region
        self._offset = region.offset + offset
        self.size = size

    def read_bytes(self) -> bytes:
        """Return the bytes of the tensor. Raises KServeRefusal if the file can't be read or is too short."""
        try:
            data = os.pread(self.region.fd, self.size, self._offset)
        except OSError as exc:
            raise KServeRefusal(
                f"{self._describe_place()} can't be read: {exc.strerror}", "INTERNAL"
            ) from None
        if len(data) < self.size:
            raise self._too_short()
        return data

    def write_tensor(self, data: Part) -> None:
        """Write an output tensor of at most `size` bytes. Raises KServeRefusal as `read_bytes` does."""
        try:
            if os.fstat(self.region.fd).st_size < self._offset + len(data):
                raise self._too_short()  # writing there would make the file longer
            view, at = memoryview(data), self._offset
            while view:
                written = os.pwrite(self.region.fd, view, at)
                view, at = view[written:], at + written
        except OSError as exc:
            raise KServeRefusal(
                f"{self._describe_place()} can't be written: {exc.strerror}", "INTERNAL"
            ) from None

    def _describe_place(self) -> str:
        return f"shared memory region '{self.region.name}'"

    def _too_short(self) -> KServeRefusal:
        return KServeRefusal(
            f"Invalid offset + byte size for {self._describe_place()}: "
            "the file behind it is shorter now than when it "
            "was registered"
        )


FindSpan = Callable[[str, int, int], Span]  # arguments: name of the region, offset, size


class SharedMemory:
    """The shared memory regions that clients have registered. Each file has at most one region.

    A region that is unregistered while requests use it exists until these requests end, as in Triton since
    2.52.
    """

    def __init__(self, allowed: str, hint: str = "v2.shared_memory is off") -> None:
        """Create the registry. allowed: value of `v2.shared_memory`: off, loopback or always.

        hint: text that tells clients why shared memory is off.
        """
        self._allowed = allowed
        self._hint = hint
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Connections and workers need most of a small limit.
        max_regions = MAX_REGIONS if files == resource.RLIM_INFINITY else min(MAX_REGIONS, files // 8)
        self.max_regions = 0 if allowed == "off" else max_regions
        self._regions: dict[str, Region] = {}
        self._leaving: list[Region] = []  # unregistered regions with requests in flight

    @property
    def offered(self) -> bool:
        """Whether any client may use shared memory."""
        return self._allowed != "off"

    def admit(self, peer: str) -> None:
        """Raise KServeRefusal (HTTP 403) if the client with this address may not use shared memory.

        peer: address in the form of HTTP or gRPC.
        """
        if self._allowed == "always" or (self._allowed == "loopback" and is_loopback(peer)):
            return
        if self._allowed == "off":
            raise KServeRefusal(f"shared memory is not offered here: {self._hint}", "PERMISSION_DENIED")
        raise KServeRefusal(
            "shared memory is not offered here: v2.shared_memory is loopback: clients on this machine alone "
            "may use it",
            "PERMISSION_DENIED",
        )

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register `byte_size` bytes at `offset` of the file `key` as a region, and open the file.

        Raises KServeRefusal if the name or file is already registered, if the file is too short, and for too
        many regions.
        """
        if not name:
            raise KServeRefusal("'region name' is necessary to register system shared memory region")
        if name in self._regions:
            raise KServeRefusal(f"shared memory region '{name}' already in manager", "ALREADY_EXISTS")
        other = next((r for r in self._regions.values() if r.key.lstrip("/") == key.lstrip("/")), None)
        if other is not None:
            raise KServeRefusal(
                f"Invalid shared memory region: '{key}' is registered as '{other.name}'; unregister that "
                "first",
                "INTERNAL",
            )
        self._leaving = [region for region in self._leaving if region.is_open]
        if len(self._regions) + len(self._leaving) >= self.max_regions:
            raise KServeRefusal(
                f"{self.max_regions} shared memory regions are registered, the most there may be",
                "UNAVAILABLE",
            )
        fd = _open_shared_memory(key)
        try:
            if not 0 < byte_size <= os.fstat(fd).st_size - offset:
                raise KServeRefusal(f"failed to register shared memory region '{name}': invalid args")
        except BaseException:
            os.close(fd)
            raise
        self._regions[name] = Region(name, key, offset, byte_size, fd)

    def unregister(self, name: str = "") -> None:
        """Unregister a region; for an empty name, all regions. Unknown names are ignored."""
        for each in [name] if name else list(self._regions):
            region = self._regions.pop(each, None)
            if region is not None:
                region.unregister()
                self._leaving.append(region)
        self._leaving = [region for region in self._leaving if region.is_open]

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Return all regions that are registered or still in use, as JSON, sorted by name.

        name: return only this region; empty for all. Raises KServeRefusal (HTTP 404) for an unknown name.
        """
        regions = {region.name: region for region in self._leaving if region.is_open} | self._regions
        if not name:
            return [regions[each].document() for each in sorted(regions)]
        if name not in regions:
            raise KServeRefusal(f"Unable to find system shared memory region: '{name}'", "NOT_FOUND")
        return [regions[name].document()]

    def span(self, peer: str, name: str, offset: int, size: int) -> Span:
        """Return the place of a tensor in a region: `size` bytes at `offset`.

        peer: address of the client. Raises KServeRefusal for a client that may not use shared memory, an
        unknown region, and bytes outside of the region.
        """
        self.admit(peer)
        region = self._regions.get(name)
        if region is None:
            raise KServeRefusal(f"Unable to find shared memory region: '{name}'", "NOT_FOUND")
        if not 0 <= offset < region.byte_size:
            raise KServeRefusal(f"Invalid offset for shared memory region: '{name}'")
        if not 0 <= size <= region.byte_size - offset:
            raise KServeRefusal(f"Invalid offset + byte size for shared memory region: '{name}'")
        return Span(region, offset, size)

    def refuse_cuda(self, name: str) -> None:
        """Raise KServeRefusal for a region of CUDA shared memory, like a Triton server without a GPU."""
        if not name:
            raise KServeRefusal("'region name' is necessary to register cuda shared memory region")
        if name in self._regions:
            raise KServeRefusal(f"shared memory region '{name}' already in manager", "ALREADY_EXISTS")
        raise KServeRefusal("failed to register shared memory region: invalid args")

    def cuda_status(self, name: str = "") -> list[dict[str, Any]]:
        """Return the CUDA shared memory regions, which is always an empty list.

        Raises KServeRefusal for a name.
        """
        if name in self._regions:
            raise KServeRefusal(
                f"The region named '{name}' is registered as system shared memory, not CUDA shared memory",
                "NOT_FOUND",
            )
        if name:
            raise KServeRefusal(f"Unable to find cuda shared memory region: '{name}'", "NOT_FOUND")
        return []


class SharedMemoryOutputs:
    """Finish hook of a request: writes its outputs into shared memory when it ends."""

    is_cacheable = False

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans

    def begin(self) -> None:
        """Keep the files of the regions open until `end`."""
        for span in self._spans:
            span.region.acquire()

    def end(self, answer: Sequence[Part] | ServingError | None) -> Sequence[Part] | ServingError | None:
        """Write the last parts of a response to shared memory, and return the other parts.

        answer: the encoded response, an error, or None when the client has left. Errors and None are returned
        as they are. Returns a KServeRefusal if writing fails.
        """
        try:
            if answer is None or isinstance(answer, ServingError):
                return answer
            for span, part in zip(self._spans, answer[-len(self._spans) :], strict=True):
                span.write_tensor(part)
            return answer[: -len(self._spans)]
        except KServeRefusal as exc:
            return exc
        finally:
            for span in self._spans:
                span.region.release()


def is_loopback(peer: str) -> bool:
    """Return whether an address is a loopback address: 127.0.0.1, ::1, or ipv4:127.0.0.1:5000 (gRPC)."""
    host = urllib.parse.unquote(peer)
    kind, colon, rest = host.partition(":")
    if colon and kind in ("ipv4", "ipv6"):
        host = rest.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def _open_shared_memory(key: str) -> int:
    """Open the file of a shared memory key in /dev/shm, and return its descriptor.

    Raises KServeRefusal (HTTP 500) if the file is missing, is no regular file, or belongs to another user.
    """
    name = key.lstrip("/")
    failed = KServeRefusal(
        f"Unable to open shared memory region: '{key[:_MAX_NAME_BYTES]}'; it must exist in {FOLDER} and "
        "belong to the user of the server",
        "INTERNAL",
    )
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise failed
    try:
        # O_NONBLOCK: opening a FIFO would wait. O_NOFOLLOW: a link could lead anywhere.
        fd = os.open(f"{FOLDER}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, UnicodeEncodeError):
        raise failed from None
    status = os.fstat(fd)
    # Otherwise a server that runs as root would open the files of every user.
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(fd)
        raise failed
    return fd
