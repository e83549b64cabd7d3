"""The modes of Triton's perf_analyzer against a repository of small models, over HTTP and gRPC."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from subprocess import CompletedProcess
from threading import Lock
from typing import Any

import numpy as np
import pytest

from bench.perf_analyzer import Analyzer
from tests.support.repository_process import RepositoryProcess
from tests.support.sequence_models import write_sum
from tests.support.service_process import ROOT
from tests.support.triton_repository import DOUBLES, write_model

TLS = ROOT / "tests" / "fixtures" / "tls"
COUNT = 20  # requests of a mode
RUNS_AT_ONCE = 4
X = 'input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }\n'
Y = 'output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }\n'
PYTHON = f'backend: "python"\nmax_batch_size: 8\n{X}{Y}'
IDENTITY = PYTHON.replace('"python"', '"identity"')
CALLS = """
class TritonPythonModel:
    def execute(self, requests):
        calls = [
            pb_utils.InferenceRequest(
                model_name="doubles", requested_output_names=["Y"], inputs=request.inputs()
            ).exec()
            for request in requests
        ]
        return [pb_utils.InferenceResponse(answer.output_tensors()) for answer in calls]
"""
# Sends an answer for each of the four numbers.
STREAMS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in request.inputs()[0].as_numpy()[0]:
                tensor = pb_utils.Tensor("Y", np.full((1, 4), number, np.float32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TWICE = f"""
platform: "ensemble"
max_batch_size: 8
{X}{Y}
ensemble_scheduling {{ step [
  {{ model_name: "doubles" input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "M" }} }},
  {{ model_name: "doubles" input_map {{ key: "X" value: "M" }} output_map {{ key: "Y" value: "Y" }} }} ] }}
"""
BOTH = {
    "async": "-m doubles --async --concurrency-range 4",
    "sync": "-m doubles --sync --concurrency-range 2",
    "rate": "-m doubles --request-rate-range 20",
    "poisson": "-m doubles --request-rate-range 20 --request-distribution poisson",
    "intervals": "-m doubles --request-intervals {folder}/intervals",
    "batch": "-m doubles -b 4 --percentile 95",
    "shared memory": "-m doubles -b 2 --shared-memory system",
    "texts in shared memory": "-m texts --shape X:2 --shared-memory system",
    "files": "-m doubles --input-data {folder}/files",
    "validation": "-m doubles --input-data {folder}/doubled.json",
    "random texts": "-m texts --shape X:3 --string-length 16",
    "texts": "-m texts --input-data {folder}/texts.json",
    "ensemble": "-m twice -x 1",
    "calls": "-m calls --bls-composing-models doubles",
    "metrics": "-m doubles --collect-metrics --verbose-csv --metrics-interval 100 --metrics-url {metrics} "
    "-f {folder}/{protocol}.csv",
    "traces": "-m traced_{protocol} --trace-level TIMESTAMPS --trace-rate 1 --trace-count -1 "
    "--log-frequency 3",
    "sequences": "-m sum --concurrency-range 3 --sequence-length 5",
    "sequences, sync": "-m sum --sync --concurrency-range 2 --sequence-length 5",
    "sequences, rate": "-m sum --request-rate-range 20 --num-of-sequences 3 --sequence-length 5",
    "sequences, serial": "-m sum --request-rate-range 20 --serial-sequences --sequence-length 5",
    "sequences, intervals": "-m sum --request-intervals {folder}/intervals --sequence-length 4",
    "sequences, validation": "-m sum --concurrency-range 2 --input-data {folder}/sums.json",
}
HTTP = {
    "headers": "-m doubles -H x-team:vision",
    "json": "-m texts --shape X:2 --input-tensor-format json --output-tensor-format json",
}
GRPC = {
    "parameters": "-m doubles --request-parameter max_tokens:256:int",
    "gzip": "-m doubles --grpc-compression-algorithm gzip",
    "deflate": "-m doubles --grpc-compression-algorithm deflate",
    "stream": "-m doubles --streaming --concurrency-range 2",
    "decoupled": "-m streams --streaming --async --profile-export-file {folder}/decoupled.json",
    "sequences, stream": "-m sum --streaming --concurrency-range 2 --input-data {folder}/sums.json",
}
MODES = [
    *((protocol, name) for name in BOTH for protocol in ("http", "grpc")),
    *(("http", name) for name in HTTP),
    *(("grpc", name) for name in GRPC),
]
# These accept no number of requests.
SEARCH = "-m doubles --concurrency-range 1:4 --binary-search --latency-threshold 100000 "
SEARCH += "--measurement-interval 500 --stability-percentage 999 --max-trials 3"
PERIODIC = "-m streams --streaming --async --periodic-concurrency-range 1:6:1 --request-period 4 "
PERIODIC += "--profile-export-file {folder}/periodic.json"


def write_repository(folder: Path) -> Path:
    write_model(folder, "doubles", f"{PYTHON}dynamic_batching {{ }}", DOUBLES)
    write_model(folder, "calls", PYTHON, CALLS)
    write_model(folder, "streams", f"{PYTHON}model_transaction_policy {{ decoupled: true }}", STREAMS)
    write_model(folder, "texts", IDENTITY.replace("FP32", "STRING").replace("[ 4 ]", "[ -1 ]"))
    (write_model(folder, "twice", TWICE) / "1").mkdir(exist_ok=True)
    for protocol in ("http", "grpc"):
        write_model(folder, f"traced_{protocol}", IDENTITY)
    write_sum(folder)
    return folder


def write_inputs(folder: Path) -> None:
    """Write files of inputs, partly with the expected outputs, and intervals in us."""
    rows = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    doubled = {"data": [{"X": row} for row in rows], "validation_data": [{"Y": [2 * x for x in rows[0]]}] * 2}
    documents: dict[str, Any] = {
        "wrong": doubled,
        "doubled": {**doubled, "validation_data": [{"Y": [2 * x for x in row]} for row in rows]},
        "texts": {"data": [{"X": {"content": ["国足", "b"], "shape": [2]}}]},
        # At its end the tool skips steps of a sequence, but not the last one. Zeros leave the sum as it is.
        "sums": {
            "data": [[{"INPUT": [x]} for x in (first, 0.0, 0.0, 0.0)] for first in rows[0]],
            "validation_data": [[{"OUTPUT": [first]}] * 4 for first in rows[0]],
        },
    }
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document, ensure_ascii=False), "utf-8")
    (folder / "intervals").write_text("5000\n20000\n", "ascii")
    (folder / "files").mkdir()
    (folder / "files" / "X").write_bytes(np.arange(4, dtype=np.float32).tobytes())


class Server:
    """A served repository, and the folder of perf_analyzer's inputs and outputs."""

    def __init__(self, service: RepositoryProcess, folder: Path) -> None:
        self.folder = folder
        self._service = service
        self._analyzer = Analyzer()
        self._regions = Lock()  # perf_analyzer's regions have the same names in each run

    def run(self, protocol: str, options: str) -> CompletedProcess[str]:
        service = self._service
        address = service.rpc_address if protocol == "grpc" else f"127.0.0.1:{service.http_port}"
        places = {"folder": self.folder, "protocol": protocol}
        metrics = f"127.0.0.1:{service.metrics_port}/metrics"
        return self._analyzer.run(
            *("-i", protocol, "-u", address), *options.format(**places, metrics=metrics).split()
        )

    def run_mode(self, number: int, protocol: str, name: str) -> CompletedProcess[str]:
        options = f"{(BOTH | HTTP | GRPC)[name]} --request-count {COUNT}"
        if name.startswith("sequences"):  # those of a run at the same time are others
            options += f" --sequence-id-range {1 + number * 1000}:{1001 + number * 1000}"
        with self._regions if "memory" in name else nullcontext():
            return self.run(protocol, options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("perf_analyzer")
    write_inputs(folder)
    arguments = ["--allow-client-shm=true", f"--trace-config=triton,file={folder / 'trace'}"]
    with RepositoryProcess(write_repository(folder / "models"), arguments=arguments) as service:
        yield Server(service, folder)


@pytest.fixture(scope="module")
def runs(server: Server) -> dict[tuple[str, str], CompletedProcess[str]]:
    """The finished run of each mode. A run mostly waits for the end of its second."""
    with ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
        pending = {mode: pool.submit(server.run_mode, number, *mode) for number, mode in enumerate(MODES)}
        return {mode: run.result() for mode, run in pending.items()}


def read_counts(run: CompletedProcess[str]) -> list[int]:
    """Return how many requests each level of the report has."""
    return [int(count) for count in re.findall(r"^    Request count: (\d+)", run.stdout, re.M)]


@pytest.mark.parametrize(("protocol", "name"), MODES)
def test_a_mode_reports_its_requests(
    runs: dict[tuple[str, str], CompletedProcess[str]], protocol: str, name: str
) -> None:
    run = runs[protocol, name]
    (count,) = read_counts(run) or [0]
    assert (run.returncode, count >= COUNT) == (0, True), f"{run.stdout}\n{run.stderr}"


@pytest.mark.usefixtures("runs")
class TestFiles:
    @pytest.mark.parametrize("protocol", ["http", "grpc"])
    def test_traces_are_written_as_the_tool_has_set(self, server: Server, protocol: str) -> None:
        written = [json.loads(path.read_text("utf-8")) for path in server.folder.glob("trace.*")]
        models = [trace.get("model_name") for traces in written for trace in traces]
        assert models.count(f"traced_{protocol}") >= COUNT - 3

    def test_a_decoupled_model_has_an_instant_for_each_response(self, server: Server) -> None:
        assert {len(each) >= 4 for each in read_responses(server.folder / "decoupled.json")} == {True}

    @pytest.mark.parametrize("protocol", ["http", "grpc"])
    def test_the_table_has_the_times_of_the_server(self, server: Server, protocol: str) -> None:
        head, row = (server.folder / f"{protocol}.csv").read_text("utf-8").splitlines()[:2]
        figures = dict(zip(head.split(","), row.split(","), strict=False))
        assert float(figures["Server Compute Infer"]) > 0


def read_responses(path: Path) -> list[list[int]]:
    """Return the instants of the responses to each request of an exported profile."""
    (experiment,) = json.loads(path.read_text("utf-8"))["experiments"]
    return [request["response_timestamps"] for request in experiment["requests"]]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_levels_are_searched(server: Server, protocol: str) -> None:
    run = server.run(protocol, SEARCH)
    assert (run.returncode, len(read_counts(run)) >= 2) == (0, True), f"{run.stdout}\n{run.stderr}"


def test_the_concurrency_grows_with_the_responses(server: Server) -> None:
    run = server.run("grpc", PERIODIC)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    assert len(read_responses(server.folder / "periodic.json")) >= 6


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_wrong_output_is_found(server: Server, protocol: str) -> None:
    run = server.run(protocol, "-m doubles --input-data {folder}/wrong.json --request-count 20")
    assert "Output doesn't match expected output" in run.stdout + run.stderr


def test_calls_are_encrypted(tmp_path: Path) -> None:
    write_model(tmp_path, "echo", IDENTITY)
    arguments = ["--grpc-use-ssl=true", f"--grpc-server-cert={TLS / 'server.pem'}"]
    arguments += [f"--grpc-server-key={TLS / 'server.key'}", "--allow-http=false"]
    with RepositoryProcess(tmp_path, arguments=arguments, wait=False) as service:
        service.wait_for_log("is ready: ")
        options = ["-m", "echo", "-i", "grpc", "-u", f"localhost:{service.rpc_port}"]
        options += ["--ssl-grpc-use-ssl", "true", "--ssl-grpc-root-certifications-file", str(TLS / "ca.pem")]
        run = Analyzer().run(*options, "--request-count", str(COUNT))
        assert (run.returncode, read_counts(run) >= [COUNT]) == (0, True), f"{run.stdout}\n{run.stderr}"
