"""The client of a voice activity service: streams a wav file, and prints the segments with speech."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # a script's own folder is on the path, the package's parent is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from client.project_environment import use_project_environment

    use_project_environment("grpc", "google")

import argparse
import json
import struct
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from client.audio_client import AudioClient, create_parser
from client.connection_options import ConnectionOptions
from client.errors import BadAnswer, ClientError
from client.options import parse_options
from client.protos.kserve_v2_pb2 import ModelInferRequest
from client.rpc_client import DEFAULT_ADDRESS
from client.tls import Tls
from client.wav_file import RATE, read_chunks

WINDOW = 512  # samples of a window
CONTEXT = 64  # samples of the previous window, which the model gets before those of the window


class Window(NamedTuple):
    """A window of audio samples, which is sent as one request."""

    start_s: float
    end_s: float
    samples: bytes  # float32 from -1 to 1, with the context in front
    is_last: bool


class Segment(NamedTuple):
    """A part of the audio with speech."""

    start_s: float
    end_s: float


def read_windows(path: str | Path) -> Iterator[Window]:
    """Yield the windows of a wav file. The last window is padded with zeros.

    The file is read window by window, so that it may have any length. Raises ValueError for a file that is
    not mono with 16 bits and 16 kHz, or has no audio, and OSError.
    """
    context, start = bytes(4 * CONTEXT), 0
    for chunk in read_chunks(path, WINDOW, WINDOW):
        samples = context + chunk.samples.ljust(4 * WINDOW, b"\0")
        yield Window(start / RATE, (start + chunk.length) / RATE, samples, chunk.is_last)
        context, start = samples[-4 * CONTEXT :], start + chunk.length


def pace_windows(windows: Iterable[Window]) -> Iterator[Window]:
    """Yield each window at the time when a microphone would have recorded it."""
    begin = time.monotonic()
    for window in windows:
        time.sleep(max(0.0, begin + window.end_s - time.monotonic()))
        yield window


class Segmenter:
    """Joins windows with speech into segments.

    threshold: windows with a higher probability have speech. pause_s: a segment only ends after a pause of
    more than this many seconds.
    """

    def __init__(self, threshold: float = 0.5, pause_s: float = 0.1) -> None:
        self._threshold = threshold
        self._pause_s = pause_s
        self._segment: Segment | None = None

    def add(self, window: Window, probability: float) -> Segment | None:
        """Add the next window. Return the segment that ended before this window, if any."""
        if probability > self._threshold:
            start_s = window.start_s if self._segment is None else self._segment.start_s
            self._segment = Segment(start_s, window.end_s)
        elif self._segment is not None and window.end_s - self._segment.end_s > self._pause_s:
            return self.finish()
        return None

    def finish(self) -> Segment | None:
        """Return the segment that has not ended yet, if any. Call it after the last window."""
        segment, self._segment = self._segment, None
        return segment


class VoiceActivityClient(AudioClient):
    """Client of a voice activity service over gRPC (KServe v2). The service keeps the state of each stream.

    Raises ValueError for an invalid `address`, `tls` or header.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        model: str = "voice_activity",
        timeout_s: float = 10.0,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a client without connecting. timeout_s: limit for each request."""
        super().__init__(address, timeout_s, tls, api_key, headers)
        self._model = model

    def score_windows(self, windows: Iterable[Window]) -> Iterator[tuple[Window, float]]:
        """Send windows as one sequence, a request each, and yield each window with its speech probability.

        Requests are not repeated, because a repeated window would count twice. Raises a ClientError.
        """
        sequence_id = uuid.uuid4().hex
        is_first = True
        for window in windows:
            yield window, self.score_window(window, sequence_id, is_first=is_first)
            is_first = False

    def score_window(self, window: Window, sequence_id: str, *, is_first: bool) -> float:
        """Send the next window of a sequence, and return its speech probability. Raise a ClientError."""
        request = ModelInferRequest(model_name=self._model, raw_input_contents=[window.samples])
        request.inputs.add(name="input", datatype="FP32", shape=[1, CONTEXT + WINDOW])
        request.parameters["sequence_id"].string_param = sequence_id
        request.parameters["sequence_start"].bool_param = is_first
        request.parameters["sequence_end"].bool_param = window.is_last
        content = self.infer(request, "output", "FP32")
        if len(content) != 4:
            raise BadAnswer(
                f"model {self._model!r} did not answer a probability named 'output', of type FP32"
            )
        return float(*struct.unpack("<f", content))


def find_segments(
    client: VoiceActivityClient, windows: Iterable[Window], segmenter: Segmenter
) -> Iterator[Segment]:
    """Yield the segments of the audio with speech, each as soon as it has ended. Raise a ClientError."""
    for window, probability in client.score_windows(windows):
        segment = segmenter.add(window, probability)
        if segment is not None:
            yield segment
    last = segmenter.finish()
    if last is not None:
        yield last


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; exit with a message if it is wrong."""
    parser = create_parser(
        "voice_activity.py",
        "Stream a wav file to a voice activity service, and print the segments with speech.",
        "python3 client/voice_activity.py talk.wav --real-time",
        timeout_s=10.0,
    )
    parser.add_argument("--model", default="voice_activity", help="its name (default: %(default)s)")
    parser.add_argument("--threshold", type=float, default=0.5, help="probability of speech (default: 0.5)")
    parser.add_argument(
        "--pause", type=float, default=0.1, metavar="SECONDS",
        help="longer pauses end a segment (default: 0.1)",
    )  # fmt: skip
    parser.add_argument("--real-time", action="store_true", help="send as fast as a microphone records")
    parser.add_argument("--json", action="store_true", help="print each segment as a JSON object")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script: stream the file, and print a line for each segment. Return 1 after an error."""
    options = parse_arguments(arguments)
    try:
        with VoiceActivityClient(
            options.address,
            options.model,
            options.timeout,
            **parse_options(ConnectionOptions, options).create_arguments(),
        ) as client:
            windows = read_windows(options.file)
            paced = pace_windows(windows) if options.real_time else windows
            for segment in find_segments(client, paced, Segmenter(options.threshold, options.pause)):
                print_segment(segment, as_json=options.json)
    except (ClientError, OSError, ValueError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def print_segment(segment: Segment, *, as_json: bool) -> None:
    """Print a segment and flush the output, so that readers of a pipe see it at once."""
    line = f"{segment.start_s:.3f} - {segment.end_s:.3f} s"
    if as_json:
        line = json.dumps({"start": round(segment.start_s, 3), "end": round(segment.end_s, 3)})
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
