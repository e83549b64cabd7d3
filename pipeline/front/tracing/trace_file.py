"""Files of traces in Triton's JSON, which a thread writes: requests do not wait for the disk."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import msgspec

from pipeline.front.tracing.request_trace import COMPUTE_EVENTS, Event, RequestTrace, Span

log = logging.getLogger(__name__)

MAX_HELD_BYTES = 16 << 20  # of traces in memory that wait for a file to be complete
_encode = msgspec.json.Encoder().encode


def list_entries(trace: RequestTrace) -> list[dict[str, Any]]:
    """Return the entries of a trace in Triton's trace file format. The requested model comes first."""
    root, *steps = trace.spans
    entries = [_build_event(root, event) for event in trace.list_received()]
    entries += _list_model_entries(trace, root)
    if trace.complete:
        entries.insert(len(entries) - 1, _build_event(root, ("INFER_RESPONSE_COMPLETE", trace.complete)))
    entries += [_build_event(root, event) for event in trace.list_sent()]
    for step in steps:
        entries += _list_model_entries(trace, step)
    return entries


def _list_model_entries(trace: RequestTrace, span: Span) -> Iterator[dict[str, Any]]:
    head = {"id": span.number, "model_name": span.model, "model_version": span.version}
    if trace.request_id:
        head["request_id"] = trace.request_id
    if span.parent is not None:
        head["parent_id"] = span.parent.number
    yield head
    *before, last = span.list_events()
    for event in before:
        yield _build_event(span, event)
    yield from _list_tensors(span, "TENSOR_QUEUE_INPUT")
    if span.compute is not None:
        for name, ns in zip(COMPUTE_EVENTS, span.compute, strict=True):
            yield _build_event(span, (name, ns))
    yield from _list_tensors(span, "TENSOR_BACKEND_OUTPUT")
    yield _build_event(span, last)


def _build_event(span: Span, event: Event) -> dict[str, Any]:
    name, ns = event
    return {"id": span.number, "timestamps": [{"name": name, "ns": ns}]}


def _list_tensors(span: Span, activity: str) -> Iterator[dict[str, Any]]:
    for tensor in span.tensors:
        if tensor.activity == activity:
            shape = ",".join(map(str, tensor.shape))
            fields = {
                "name": tensor.name,
                "data": tensor.data,
                "shape": shape,
                "dtype": tensor.datatype,
            }
            yield {"id": span.number, "activity": activity, "tensor": fields}


def encode_trace(trace: RequestTrace) -> bytes:
    """Return the entries of a trace as elements of a JSON list, without the brackets of the list."""
    return _encode(list_entries(trace))[1:-1]


class TraceFile:
    """A file with a JSON list of traces, which is complete after each write.

    Some trace settings write to FILE.0, FILE.1, ... instead of FILE. Disk errors are logged once until a
    trace is written again.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._size = 0  # of the file itself; 0 before the first trace
        self._index = 0
        self._has_failed = False

    def append(self, traces: list[bytes]) -> bool:
        """Append traces to the file without an index. Return whether they are written."""
        return self._write(self.path, traces, self._size)

    def write_indexed(self, traces: list[bytes]) -> bool:
        """Write traces to the next file with an index. Return whether they are written."""
        path = f"{self.path}.{self._index}"
        self._index += 1
        return self._write(path, traces, 0)

    def _write(self, path: str, traces: list[bytes], size: int) -> bool:
        """Write traces to the end of a file.

        If the file has traces, overwrite the closing bracket of its list.
        """
        data = (b"," if size else b"[") + b",".join(traces) + b"]"
        at = max(0, size - 1)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if size else os.O_TRUNC), 0o644)
            try:
                _write_at(fd, data, at, size)
            finally:
                os.close(fd)
        except OSError as exc:
            if not self._has_failed:
                log.error("Traces are lost: the trace file %s can't be written: %s", path, exc.strerror)
            self._has_failed = True
            return False
        self._has_failed = False
        if path == self.path:
            self._size = at + len(data)
        return True


def _write_at(fd: int, data: bytes, at: int, size: int) -> None:
    """Write all bytes at an offset of a file. If that fails, restore the file. size: its previous size."""
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(fd, data[done:], at + done)
    except OSError:
        with contextlib.suppress(OSError):
            if size:
                os.pwrite(fd, b"]", size - 1)
            os.ftruncate(fd, size)
        raise


class TraceLog:
    """Traces of one trace setting that wait to be written to a file.

    If the setting has a count or a log frequency, its traces are held until the file is complete, up to
    `MAX_HELD_BYTES`.
    """

    def __init__(self, file: TraceFile, log_frequency: int, *, holds: bool) -> None:
        """Create the log of a trace setting.

        holds: whether the setting has a count, after which its traces are written to a file with an index.
        """
        self._file = file
        self._log_frequency = log_frequency
        self._holds = holds or log_frequency > 0
        self._traces: list[bytes] = []
        self._bytes = 0

    def add(self, trace: RequestTrace, *, is_last: bool) -> int:
        """Add a trace. Return the number of traces that could not be written.

        is_last: whether it is the last trace of the setting's count.
        """
        data = encode_trace(trace)
        self._traces.append(data)
        self._bytes += len(data)
        if is_last or (self._log_frequency and len(self._traces) >= self._log_frequency):
            return self._flush(indexed=True)
        if not self._holds or self._bytes > MAX_HELD_BYTES:
            return self._flush(indexed=bool(self._log_frequency))
        return 0

    def close(self) -> int:
        """Write the traces that wait. Return the number of traces that could not be written."""
        return self._flush(indexed=bool(self._log_frequency)) if self._traces else 0

    def _flush(self, *, indexed: bool) -> int:
        traces, self._traces, self._bytes = self._traces, [], 0
        is_written = self._file.write_indexed(traces) if indexed else self._file.append(traces)
        return 0 if is_written else len(traces)
