"""The files that design.md lists for a request and for a start are those that run, in that order.

A service is started with every function call of ours noted, in the script, the front and the worker.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as v2

from tests.support import onnx_models
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess, key_value, wait_until

TRACE = ROOT / "tests" / "fixtures" / "trace"
START_S = 2 * PATIENCE_S  # as `ServiceProcess.wait_until_ready` waits
MAX_FILES = 18  # that a reader of a key/value request opens
AMPLE_S = 24 * 3600.0
ROW = {"input_ids": "[[1, 2, 3]]", "token_type_ids": "[[0, 0, 0]]", "attention_mask": "[[1, 1, 1]]"}

# Left out: it is told of requests, and on the way of none. Isolation only stands around other calls.
TELEMETRY = ("front/metrics/", "front/scheduler/gauges.py", "front/pool/outputs.py", "output.py")
ISOLATION = "process/isolation.py"
READER = "output"  # the process that only makes lines of what others print
LEFT_OUT = {  # calls, with all that they call in turn, for they come when they like
    "Deadlines._expire": "the timer of all deadlines",
    "HungRuns.watch": "sets the timer for runs that are late",
    "HungRuns._look": "this timer",
    "Instance._check_rest": "the timer for a worker that stops within a frame",
    "Listener.watch": "the timer that sends slow and silent connections away",
    "SlowCalls._report": "the timer for gRPC calls that take longer than 20 ms",
    "UnreadResponses._scan": "the timer for responses of such calls",
    "PartialMessages._scan": "the timer for messages of such calls",
    "RpcServer._watch_listeners": "checks every second whether the gRPC ports are open",
    "AbandonedCalls._replace_all": "waits for calls that are over their time",
    "_trim": "the timer that gives memory back",
    "_Acceptor.start_task": "the task for the next gRPC call, if no other is idle",
    "Connection.eof_received": "the end of a connection that a test before has used",
    "Connection.connection_lost": "the same",
}
CONSTRUCTOR = re.compile(r"__init__(\.|$)")  # and what is written within it
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
LINE = re.compile(r"(\d+)\. `pipeline/([\w/]+\.py)`, ((?:script|front|worker|, | and )+): \S")
RANGE = re.compile(r"(\d+) to (\d+)\. As steps (\d+) to (\d+) above\.")


class Entry(NamedTuple):
    """A file, and the processes in which it is entered, first the one that does so first."""

    path: str
    processes: tuple[str, ...]


class Call(NamedTuple):
    """One call, in nanoseconds of the machine's clock. depth: in calls of ours, within its thread."""

    at_ns: int
    process: str
    thread: str
    depth: int
    path: str
    function: str


class Trace:
    """What the processes of a service note of themselves while the switch is on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "calls"
        self._folder.mkdir()
        self._switch = folder / "switch"
        self._switch.write_bytes(b"1")
        self.env = {
            "PYTHONPATH": os.pathsep.join(map(str, (TRACE, ROOT))),
            "TRACE_FOLDER": str(self._folder),
            "TRACE_SWITCH": str(self._switch),
            "TRACE_PACKAGE": f"{ROOT / 'pipeline'}/",
        }

    @contextlib.contextmanager
    def on(self) -> Iterator[list[Call]]:
        """The calls of the block, in order, once it is left."""
        for file in self._folder.iterdir():
            os.truncate(file, 0)
        calls: list[Call] = []
        self._turn(b"1")
        try:
            yield calls
        finally:
            calls += self.off()

    def off(self) -> list[Call]:
        """The calls since it was turned on, as it is from the start."""
        self._turn(b"0")
        found = []
        for file in self._folder.iterdir():
            process = file.name.partition(".")[0]
            for line in file.read_text("utf-8").splitlines():
                at_ns, thread, depth, path, function = line.split(" ", 4)
                found.append(Call(int(at_ns), process, f"{file.name} {thread}", int(depth), path, function))
        return sorted(found)

    def _turn(self, to: bytes) -> None:
        with self._switch.open("r+b") as file:
            file.write(to)


class Followed(NamedTuple):
    service: ServiceProcess
    trace: Trace
    start: list[Call]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    """A service with a small ONNX model, nobody's request before its READY."""
    folder = tmp_path_factory.mktemp("life")
    trace = Trace(folder)
    conf = {"model_config": str(onnx_models.serving(folder)), "thread_num": 1}
    # Idle instances are not probed: a probe comes when it likes, and runs much of what a request runs. With
    # so much time, admission need not look at the queue, however long the requests before it took.
    op = {"batch_size": 8, "probe_interval": 0, "local_service_conf": conf}
    config = {"dag": {"request_timeout": AMPLE_S}, "op": {"model": op}}
    with ServiceProcess(APPS / "either_dialect.py", config, env=trace.env, wait=False) as service:
        told = "Service test is ready"  # asking for it over HTTP would be in the trace
        wait_until(lambda: told in service.log, told, START_S, on_timeout=lambda: service.log)
        yield Followed(service, trace, trace.off())


def listed(title: str) -> list[Entry]:
    """The list below this heading of section 9."""
    text = (ROOT / "docs" / "design.md").read_text("utf-8")
    _, heading, below = text.partition(f"\n### {title}\n")
    assert heading, f"docs/design.md has no heading {title!r}"
    entries = []
    for line in re.findall(r"^\d+.*", below.partition("\n#")[0], re.MULTILINE):
        if same := RANGE.fullmatch(line):
            first, last, from_step, to_step = map(int, same.groups())
            again = listed("A key/value request over HTTP")[from_step - 1 : to_step]
            assert (first, last) == (len(entries) + 1, len(entries) + len(again))
            entries += again
            continue
        one = LINE.match(line)
        assert one, f"a line is in no form that is read: {line}"
        number, path, processes = one.groups()
        entries.append(Entry(path, tuple(re.split(r", | and ", processes))))
        assert int(number) == len(entries)
    return entries


def entered(calls: list[Call]) -> list[Entry]:
    """The files that were entered, by their first call."""
    processes: dict[str, list[str]] = {}
    left_out: dict[str, int] = {}  # by thread: how deep the call stands that is left out
    for call in calls:
        if call.depth <= left_out.get(call.thread, call.depth):
            left_out.pop(call.thread, None)
        if call.function in LEFT_OUT:
            left_out.setdefault(call.thread, call.depth)
        if call.thread in left_out or call.path.startswith((*TELEMETRY, ISOLATION)) or call.process == READER:
            continue
        seen = processes.setdefault(call.path, [])
        if call.process not in seen:
            seen.append(call.process)
    return [Entry(path, tuple(seen)) for path, seen in processes.items()]


def test_a_request_over_http_enters_the_files_that_are_listed_in_that_order(followed: Followed) -> None:
    service = followed.service
    with contextlib.closing(service.connection()) as connection, followed.trace.on() as calls:
        for _ in range(2):  # once the second is answered, all that the first one did is noted
            connection.request("POST", "/test/prediction", key_value(ROW))
            assert b'"err_no":0' in connection.getresponse().read()
    followed_files = listed("A key/value request over HTTP")
    assert entered(calls) == followed_files
    assert len(followed_files) <= MAX_FILES


def test_a_request_of_kserve_v2_over_grpc_enters_the_files_that_are_listed_in_that_order(
    followed: Followed,
) -> None:
    inputs = []
    for name, text in ROW.items():
        data = np.array([json.loads(text)[0] * 2])  # of another length: each kind of feeds is checked once
        inputs.append(v2.InferInput(name, [1, 6], "INT64"))
        inputs[-1].set_data_from_numpy(data)
    address = f"127.0.0.1:{followed.service.rpc_port}"
    with v2.InferenceServerClient(address) as client, followed.trace.on() as calls:
        for _ in range(2):  # as above
            assert client.infer("test", inputs).as_numpy("logits").shape == (1, 3)
    assert entered(calls) == listed("A ModelInfer of KServe v2 over gRPC")


def test_a_start_enters_the_files_that_are_listed_in_that_order(followed: Followed) -> None:
    calls = [call for call in followed.start if not CONSTRUCTOR.search(call.function)]
    assert entered(calls) == listed("A start")


def test_each_call_that_is_left_out_is_one_that_there_is() -> None:
    functions = set()
    for path in (ROOT / "pipeline").rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                functions |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, FUNCTION)}
            elif isinstance(node, FUNCTION):
                functions.add(node.name)
    assert set(LEFT_OUT) <= functions
    assert all((ROOT / "pipeline" / path).exists() for path in TELEMETRY)
