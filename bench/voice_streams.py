"""Streams of audio to services/voice_activity: latency in real time, full-speed batches, correct answers."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import struct
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import yaml
from rich.console import Console
from rich.table import Table

from bench.running import ROOT
from client.endpoints import V2_METHOD_PATH
from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse
from client.voice_activity import CONTEXT, WINDOW, Window, read_windows
from tests.support.free_ports import free_port
from tests.support.service_process import ServiceProcess
from tests.support.voice_models import score_alone

EXAMPLES = """examples:
  python -m bench.voice_streams --model silero_vad.onnx --wav talk.wav --streams 8 60
  python -m bench.voice_streams --model silero_vad.onnx --wav talk.wav --streams 500 --full-speed
"""
WINDOW_S = 0.032
STREAMS_OF_A_CHANNEL = 50


@dataclass
class Answers:
    """Results of the requests of all streams."""

    latencies_ms: list[float] = field(default_factory=list)
    difference: float = 0.0  # the largest, to ONNX Runtime alone
    failed: int = 0

    def percentile(self, percent: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(percent / 100 * len(ordered)))] if ordered else 0.0


@contextmanager
def running_vad(model: Path, batch_size: int) -> Iterator[ServiceProcess]:
    """Start the project's voice activity service with this model."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "voice_activity"
        shutil.copytree(ROOT / "services/voice_activity", folder, ignore=shutil.ignore_patterns("*.onnx"))
        shutil.copy(model, folder / "silero_vad" / "silero_vad.onnx")
        ports = {"http_port": free_port(), "rpc_port": free_port()}
        config = yaml.safe_load((folder / "config.yml").read_text("utf-8")) | ports
        config["op"]["voice_activity"]["batch_size"] = batch_size
        (folder / "config.yml").write_text(yaml.safe_dump(config), "utf-8")
        with ServiceProcess(folder, ports, name="voice_activity") as service:
            yield service


def message(window: Window, sequence_id: str, is_first: bool) -> bytes:
    request = ModelInferRequest(model_name="voice_activity", raw_input_contents=[window.samples])
    request.inputs.add(name="input", datatype="FP32", shape=[1, CONTEXT + WINDOW])
    request.outputs.add(name="output")
    request.parameters["sequence_id"].string_param = sequence_id
    request.parameters["sequence_start"].bool_param = is_first
    request.parameters["sequence_end"].bool_param = window.is_last
    return request.SerializeToString()


async def stream(
    channel: grpc.aio.Channel,
    windows: Sequence[Window],
    expected: Sequence[float],
    end: float,
    real_time: bool,
    answers: Answers,
) -> None:
    """Send the recording over and over until `end`, each time as a sequence of its own."""
    call = channel.unary_unary(V2_METHOD_PATH)
    due = time.monotonic() + (random.uniform(0, 10 * WINDOW_S) if real_time else 0)
    while due < end:
        sequence_id = uuid.uuid4().hex
        for number, window in enumerate(windows):
            if real_time:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            sent = due if real_time else time.monotonic()
            try:
                data = await call(message(window, sequence_id, number == 0), timeout=10)
            except grpc.aio.AioRpcError:
                answers.failed += 1
                break
            answers.latencies_ms.append(1000 * (time.monotonic() - sent))
            (score,) = struct.unpack("<f", ModelInferResponse.FromString(data).raw_output_contents[0])
            answers.difference = max(answers.difference, abs(score - expected[number]))
            due = due + WINDOW_S if real_time else time.monotonic()
            if due >= end:
                return


async def measure(
    address: str,
    streams: int,
    seconds: float,
    real_time: bool,
    windows: Sequence[Window],
    expected: Sequence[float],
) -> Answers:
    answers = Answers()
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(address, options) for _ in range(-(-streams // STREAMS_OF_A_CHANNEL))
    ]
    end = time.monotonic() + seconds
    await asyncio.gather(
        *(
            stream(channels[n % len(channels)], windows, expected, end, real_time, answers)
            for n in range(streams)
        )
    )
    for channel in channels:
        await channel.close()
    return answers


def rows_and_batches(service: ServiceProcess) -> tuple[float, float]:
    name = "paddlewheel_op_batch_rows"
    return service.metric(f"{name}_sum"), service.metric(f"{name}_count")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.voice_streams",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="silero_vad.onnx")
    parser.add_argument("--wav", type=Path, required=True, help="mono, 16 bits, 16 kHz")
    parser.add_argument("--streams", type=int, nargs="+", default=[60], help="at a time (default: 60)")
    parser.add_argument("--seconds", type=float, default=20, help="of each level (default: 20)")
    parser.add_argument("--batch-size", type=int, default=64, help="default: 64")
    parser.add_argument("--full-speed", action="store_true", help="send when the last window is answered")
    options = parser.parse_args()
    windows = list(read_windows(options.wav))
    expected = score_alone(options.model, windows)
    table = Table(title="full speed" if options.full_speed else "real time", title_justify="left")
    for heading in ("streams", "windows/s", "p50 ms", "p95", "p99", "rows a batch", "difference", "failed"):
        table.add_column(heading, justify="right")
    with running_vad(options.model, options.batch_size) as service:
        for streams in options.streams:
            before = rows_and_batches(service)
            run = measure(
                service.rpc_address, streams, options.seconds, not options.full_speed, windows, expected
            )
            start = time.monotonic()
            answers = asyncio.run(run)
            elapsed_s = time.monotonic() - start  # longer than asked for where answers are late
            rows, batches = (b - a for a, b in zip(before, rows_and_batches(service), strict=True))
            table.add_row(
                str(streams), f"{len(answers.latencies_ms) / elapsed_s:.0f}",
                *(f"{answers.percentile(percent):.1f}" for percent in (50, 95, 99)),
                f"{rows / batches:.1f}" if batches else "", f"{answers.difference:.1e}", str(answers.failed),
            )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
