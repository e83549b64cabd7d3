"""Recordings of spoken digits by several clients at once, beside a loop of the same models in one process."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

from client.endpoints import V2_METHOD_PATH
from client.protos.kserve_v2_pb2 import ModelInferResponse
from client.speech_recognition import build_speech_request, read_recording
from client.wav_file import Chunk
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import ROOT, ServiceProcess

EXAMPLES = """examples:
  python3 services/speech_recognition/train.py
  python -m bench.speech --clients 1 8 64
"""
SERVICE = ROOT / "services" / "speech_recognition"
MODEL, ENCODER = "digits", "digit_encoder:1"
MAX_DIGITS, SEED = 8, 32
_TIMEOUT_S = 60


@dataclass
class Answers:
    """Answers to all clients."""

    latencies_ms: list[float] = field(default_factory=list)
    wrong: int = 0  # other texts than the model alone gives


class BareLoop:
    """Features, encoder and beam search of the script in one process, one batch after the other."""

    def __init__(self, folder: Path) -> None:
        spec = importlib.util.spec_from_file_location("speech_service", folder / "web_service.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._op = object.__new__(module.SpeechRecognitionOp)
        self._op.init_op()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(folder / "model/encoder.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._names = [output.name for output in self._session.get_outputs()]

    def transcribe(self, recordings: Sequence[Chunk]) -> list[str]:
        """Return the texts of recordings, which zeros pad to the longest."""
        waves = np.zeros((len(recordings), max(each.length for each in recordings)), np.float32)
        for row, recording in zip(waves, recordings, strict=True):
            row[: recording.length] = np.frombuffer(recording.samples, np.float32)
        lengths = np.array([[each.length] for each in recordings], np.int32)
        feeds = self._op.preprocess({"@": {"WAV": waves, "WAV_LENS": lengths}}, 0, 0)
        fetches = dict(zip(self._names, self._session.run(self._names, feeds), strict=True))
        answer = self._op.postprocess({}, fetches, 0, 0)
        return [str(text) for text in answer["TRANSCRIPTS"].ravel()]

    def measure(self, recordings: Sequence[Chunk], batch_size: int, seconds: float) -> float:
        """Return the recordings per second of batches of random recordings."""
        rng, done, began = random.Random(SEED), 0, time.perf_counter()
        while (elapsed_s := time.perf_counter() - began) < seconds:
            self.transcribe(rng.choices(recordings, k=batch_size))
            done += batch_size
        return done / elapsed_s


def record(count: int) -> list[Chunk]:
    """Return recordings of 1 to 8 digits, spoken by espeak-ng."""
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "talk.wav"
        recordings = []
        for number in range(count):
            digits = "".join(rng.choices("0123456789", k=1 + number % MAX_DIGITS))
            subprocess.run([sys.executable, str(SERVICE / "spoken_digits.py"), digits, str(path)], check=True)
            recordings.append(read_recording(path))
    return recordings


async def send(
    address: str, messages: Sequence[bytes], expected: Sequence[str], clients: int, seconds: float
) -> Answers:
    """Send recordings until the time is over, the next one of a client when the last one is answered."""
    answers, end = Answers(), time.monotonic() + seconds
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(V2_METHOD_PATH)

        async def repeat(seed: int) -> None:
            rng = random.Random(seed)
            while time.monotonic() < end:
                number = rng.randrange(len(messages))
                began = time.monotonic()
                data = await call(messages[number], timeout=_TIMEOUT_S)
                answers.latencies_ms.append(1000 * (time.monotonic() - began))
                (content,) = ModelInferResponse.FromString(data).raw_output_contents
                answers.wrong += content[4:].decode() != expected[number]

        await asyncio.gather(*(repeat(seed) for seed in range(clients)))
    return answers


def count_rows(service: ServiceProcess) -> tuple[float, float]:
    """Return the rows and the batches of the encoder so far."""
    rows, batches = (
        service.metric(f"paddlewheel_op_batch_rows_{part}", op=ENCODER) for part in ("sum", "count")
    )
    return rows, batches


def measure(
    folder: Path, recordings: Sequence[Chunk], clients: Sequence[int], seconds: float
) -> Iterator[Sequence[str]]:
    """Yield a row of the table for each number of clients."""
    bare = BareLoop(folder)
    expected = list(itertools.chain.from_iterable(bare.transcribe([each]) for each in recordings))
    messages = [build_speech_request(MODEL, each).SerializeToString() for each in recordings]
    with RepositoryProcess(folder / "model_repo") as service:
        service.wait_until_ready(every_instance=True)
        asyncio.run(send(service.rpc_address, messages, expected, 4, 1.0))  # warm up
        for count in clients:
            bare_per_s = bare.measure(recordings, count, seconds)
            before, began = count_rows(service), time.monotonic()
            answers = asyncio.run(send(service.rpc_address, messages, expected, count, seconds))
            per_s = len(answers.latencies_ms) / (time.monotonic() - began)
            rows, batches = (b - a for a, b in zip(before, count_rows(service), strict=True))
            p50, p95 = np.percentile(answers.latencies_ms, (50, 95))
            yield (
                str(count), f"{per_s:.1f}", f"{bare_per_s:.1f}", f"{per_s / bare_per_s:.2f}", f"{p50:.0f}",
                f"{p95:.0f}", f"{rows / batches:.1f}", str(answers.wrong),
            )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.speech", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, default=SERVICE, help="the trained service (%(default)s)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64], help="(default: 1 8 64)")
    parser.add_argument("--recordings", type=int, default=24, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="of each level (default: %(default)s)")
    options: Any = parser.parse_args()
    if not (options.folder / "model/encoder.onnx").is_file():
        parser.error(f"{options.folder} has no model; run `python3 services/speech_recognition/train.py`")
    recordings = record(options.recordings)
    lengths = sorted(each.length / 16000 for each in recordings)
    table = Table(title=f"recordings of {lengths[0]:.1f} to {lengths[-1]:.1f} s", title_justify="left")
    headings = ("clients", "served/s", "bare loop/s", "ratio", "p50 ms", "p95", "rows a batch", "wrong")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in measure(options.folder, recordings, options.clients, options.seconds):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
