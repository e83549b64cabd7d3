"""Reads wav files in chunks, as the samples that speech models get."""

from __future__ import annotations

import struct
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RATE = 16000  # samples per second


class Chunk(NamedTuple):
    """Successive samples of a recording; `is_last` marks its last chunk."""

    samples: bytes  # float32 from -1 to 1
    length: int  # number of samples
    is_last: bool


def read_chunks(path: str | Path, first: int, following: int) -> Iterator[Chunk]:
    """Yield a wav file as a first chunk and following chunks, whose sizes are given in samples.

    The last chunk may be shorter. The file is read chunk by chunk. Raises ValueError for a file that is not
    mono with 16 bits and 16 kHz, or has no audio, and OSError.
    """
    try:
        with wave.open(str(path)) as file:
            form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            if form != (1, 2, RATE):
                raise ValueError(
                    f"{path} has {form[0]} channels of {8 * form[1]} bits at {form[2]} Hz; "
                    f"convert it to mono, 16 bits and {RATE} Hz"
                )
            yield from _split_audio(file, first, following)
    except (wave.Error, EOFError) as exc:
        raise ValueError(f"{path} is no wav file: {exc or 'it ends early'}") from exc


def _split_audio(file: wave.Wave_read, first: int, following: int) -> Iterator[Chunk]:
    frames = file.readframes(first)
    if not frames:
        raise ValueError("the wav file has no audio")
    while frames:
        next_frames = file.readframes(following)
        count = len(frames) // 2
        numbers = struct.unpack(f"<{count}h", frames[: 2 * count])
        samples = struct.pack(f"<{count}f", *(number / 32768 for number in numbers))
        yield Chunk(samples, count, not next_frames)
        frames = next_frames
