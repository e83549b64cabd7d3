"""Sequences of Python models that keep the state themselves: bound to the instance, and lost with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from tests.support.repository_process import RepositoryProcess
from tests.support.sequence_models import CONTROLS, control, first, protocols
from tests.support.triton_recordings import (
    RECORDED,
    recorded_grpc,
    recorded_http,
    replayed_grpc,
    replayed_http,
)
from tests.support.triton_repository import write_model, write_recorded

SUMS = """
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
    def execute(self, requests):
        answers = []
        for request in requests:
            start, end, key, x = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
                for name in ("START", "END", "CORRID", "INPUT")
            )
            self.sums[key] = x if start else self.sums[key] + x
            answers.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("OUTPUT", np.array([[self.sums[key]]], np.float32))
            ]))
            if end:
                del self.sums[key]
        return answers
"""
CONFIG = f"""
backend: "python"
max_batch_size: 4
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
sequence_batching {{
  max_sequence_idle_microseconds: 60000000
  oldest {{ max_candidate_sequences: 3 }}
  control_input [ {", ".join([*CONTROLS, control("CORRID", "CORRID", "data_type: TYPE_UINT64")])} ]
}}
instance_group [ {{ count: 2 kind: KIND_CPU }} ]
"""
# In the order of the recording.
CASES = ["sequence.0", "g.seq.1", "g.seq.2", "sequence.string", "sequence.restart", "sequence.batch2",
         "sequence.empty_string_id", "g.stream.seq"]  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    repository = write_recorded(tmp_path_factory.mktemp("bound"))
    folder = tmp_path_factory.mktemp("chosen")
    (folder / "seq_state").symlink_to(repository / "seq_state")
    write_model(folder, "sums", CONFIG, SUMS)
    with RepositoryProcess(folder) as process:
        yield process


def test_more_sequences_than_slots_wait_for_one(service: RepositoryProcess) -> None:
    with protocols(service) as (_, infer), ThreadPoolExecutor(9) as clients:

        def run(key: int) -> list[float]:
            flags = [{"sequence_start": not number, "sequence_end": number == 7} for number in range(8)]
            return [first(infer("sums", key, sequence_id=key, **each)) for each in flags]

        assert list(clients.map(run, range(1, 10))) == [
            [key * n for n in range(1, 9)] for key in range(1, 10)
        ]
    assert service.metric("paddlewheel_sequences", op="sums:1") == 0


def test_a_sequence_ends_with_the_instance_that_kept_its_state(service: RepositoryProcess) -> None:
    with protocols(service) as (over_http, infer):
        assert first(infer("sums", 1, sequence_id=50, sequence_start=True)) == 1
        assert first(infer("sums", 1, sequence_id=50)) == 2
        for pid in service.worker_pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(
            InferenceServerException, match=r"sequence 50 .* the instance that kept its state"
        ) as lost:
            over_http("sums", 1, sequence_id=50)
        assert lost.value.status() == "409"
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            infer("sums", 1, sequence_id=50)
        assert first(infer("sums", 4, sequence_id=50, sequence_start=True, sequence_end=True)) == 4


def test_only_the_sequences_of_a_dead_instance_end(service: RepositoryProcess) -> None:
    service.wait_until_ready(every_instance=True)
    with protocols(service) as (_, infer):
        keys = range(60, 64)
        assert [first(infer("sums", key, sequence_id=key, sequence_start=True)) for key in keys] == [*keys]
        names = {Path(f"/proc/{pid}/comm").read_text().strip(): pid for pid in service.worker_pids()}
        os.kill(names["sums:1.0"], signal.SIGKILL)
        lost = 0
        for key in keys:
            try:
                assert first(infer("sums", 1, sequence_id=key, sequence_end=True)) == key + 1
            except InferenceServerException as exc:
                assert "the instance that kept its state" in str(exc)
                assert exc.status() == "StatusCode.ABORTED"
                lost += 1
        assert lost == 2


def test_answers_are_those_that_triton_gave(service: RepositoryProcess) -> None:
    rows = {row["id"]: row for row in RECORDED}
    for case in CASES:
        row = rows[case]
        if row["source"] == "grpc":
            assert replayed_grpc(row, lambda _: service) == recorded_grpc(row), case
        else:
            assert replayed_http(row, lambda _: service) == recorded_http(row), case
