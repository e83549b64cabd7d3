"""The client of WeNet's models: sends a wav file, whole or as a stream, and prints its text."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # a script's own folder is on the path, the package's parent is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from client.project_environment import use_project_environment

    use_project_environment("grpc", "google")

import argparse
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence

from client.audio_client import AudioClient, create_parser
from client.connection_options import ConnectionOptions
from client.errors import BadAnswer, ClientError
from client.options import parse_options
from client.protos.kserve_v2_pb2 import ModelInferRequest
from client.rpc_client import DEFAULT_ADDRESS
from client.tls import Tls
from client.wav_file import RATE, Chunk, read_chunks

OFFLINE_MODEL, STREAMING_MODEL = "attention_rescoring", "streaming_wenet"
CHUNK_S, FIRST_CHUNK_S = 0.64, 0.69  # the first chunk fills the decoding window of WeNet's encoder
MAX_SAMPLES = 1 << 31  # more than a wav file can hold


class SpeechClient(AudioClient):
    """gRPC client (KServe v2) of WeNet's speech recognition models, for recordings and streams.

    Raises ValueError for an invalid `address`, `tls` or header.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        timeout_s: float = 60.0,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a client without connecting. timeout_s: limit for each request."""
        super().__init__(address, timeout_s, tls, api_key, headers)

    def transcribe(self, chunk: Chunk, model: str = OFFLINE_MODEL) -> str:
        """Return the text of a whole recording. Raise a ClientError."""
        return self._transcribe(build_speech_request(model, chunk))

    def transcribe_stream(self, chunks: Iterable[Chunk], model: str = STREAMING_MODEL) -> Iterator[str]:
        """Send the chunks of a stream as a sequence, and yield the text recognized so far after each chunk.

        Requests are not repeated, because a repeated chunk would count twice. Raises a ClientError.
        """
        sequence_id, is_first = uuid.uuid4().int >> 65, True  # WeNet's models expect a number
        for chunk in chunks:
            request = build_speech_request(model, chunk)
            request.parameters["sequence_id"].int64_param = sequence_id
            request.parameters["sequence_start"].bool_param = is_first
            request.parameters["sequence_end"].bool_param = chunk.is_last
            yield self._transcribe(request)
            is_first = False

    def _transcribe(self, request: ModelInferRequest) -> str:
        content = self.infer(request, "TRANSCRIPTS", "BYTES")
        if len(content) < 4:  # the length of the text
            raise BadAnswer(
                f"model {request.model_name!r} answered no text named 'TRANSCRIPTS', of type BYTES"
            )
        return content[4:].decode("utf-8", "replace")


def build_speech_request(model: str, chunk: Chunk) -> ModelInferRequest:
    """Return the request that sends a recording, or a chunk of a stream, to a speech model."""
    request = ModelInferRequest(
        model_name=model, raw_input_contents=[chunk.samples, struct.pack("<i", chunk.length)]
    )
    request.inputs.add(name="WAV", datatype="FP32", shape=[1, chunk.length])
    request.inputs.add(name="WAV_LENS", datatype="INT32", shape=[1, 1])
    return request


def read_recording(path: str | Path) -> Chunk:
    """Return all samples of a wav file. Raise ValueError for an unsuitable file, and OSError."""
    return next(read_chunks(path, MAX_SAMPLES, 1))


def read_stream(
    path: str | Path, first_s: float = FIRST_CHUNK_S, following_s: float = CHUNK_S
) -> Iterator[Chunk]:
    """Yield the chunks of a wav file. A first chunk that is too short is padded with zeros.

    Raises ValueError for an unsuitable file, and OSError.
    """
    first = int(first_s * RATE)
    for number, chunk in enumerate(read_chunks(path, first, int(following_s * RATE))):
        if number == 0 and chunk.length < first:
            chunk = Chunk(chunk.samples.ljust(4 * first, b"\0"), first, chunk.is_last)
        yield chunk


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; exit with a message if it is wrong."""
    parser = create_parser(
        "speech_recognition.py",
        "Send a wav file to WeNet's models, and print its text.",
        "python3 client/speech_recognition.py talk.wav --stream",
        timeout_s=60.0,
    )
    parser.add_argument(
        "--model", help=f"its name (default: {OFFLINE_MODEL}, or {STREAMING_MODEL} with --stream)"
    )
    parser.add_argument("--stream", action="store_true", help="send chunks, and print the text after each")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script: send the file, and print its text. Return 1 as the exit code after an error."""
    options = parse_arguments(arguments)
    try:
        with SpeechClient(
            options.address,
            options.timeout,
            **parse_options(ConnectionOptions, options).create_arguments(),
        ) as client:
            for text in transcribe_file(client, options.file, options.model, stream=options.stream):
                sys.stdout.write(f"{text}\n")
                sys.stdout.flush()
    except (ClientError, OSError, ValueError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def transcribe_file(
    client: SpeechClient, path: str | Path, model: str | None = None, *, stream: bool = False
) -> Iterator[str]:
    """Yield the text of a wav file, or, with `stream`, the text after each chunk. Raise a ClientError."""
    if stream:
        yield from client.transcribe_stream(read_stream(path), model or STREAMING_MODEL)
    else:
        yield client.transcribe(read_recording(path), model or OFFLINE_MODEL)


if __name__ == "__main__":
    sys.exit(main())
