"""Speaks digits with espeak-ng: `python3 spoken_digits.py 31415 talk.wav` writes a wav file.

On Debian: apt-get install espeak-ng.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
UNHEARD = (("en-us+m2", 140, 45), ("en+f3", 160, 55))  # voice, speed and pitch that no training hears
RATE = 16000
Samples = np.ndarray[Any, np.dtype[np.float32]]


class NotSpoken(Exception):
    """Raised if espeak-ng is missing or fails."""


def speak(word: str, voice: str, speed: int, pitch: int) -> Samples:
    """Return a word spoken by espeak-ng, without silence around it. Raises NotSpoken."""
    program = shutil.which("espeak-ng")
    if program is None:
        raise NotSpoken("espeak-ng is missing; on Debian: apt-get install espeak-ng")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "word.wav"
        command = [program, "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", str(path), word]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotSpoken(f"espeak-ng failed for voice {voice}: {done.stderr.strip()}")
        with wave.open(str(path)) as file:
            rate, content = file.getframerate(), file.readframes(file.getnframes())
    samples = np.frombuffer(content, "<i2").astype(np.float32) / 32768
    times = np.arange(int(len(samples) * RATE / rate)) * rate / RATE
    resampled = np.interp(times, np.arange(len(samples)), samples)
    loud = np.flatnonzero(np.abs(resampled) > 0.01 * np.abs(resampled).max())
    return resampled[loud[0] : loud[-1] + 1].astype(np.float32)


def say(clips: Sequence[Sequence[Samples]], digits: Sequence[int], rng: np.random.Generator) -> Samples:
    """Return digits with pauses between them, and half a second of silence behind. clips: by digit."""
    parts: list[Any] = []
    for digit in digits:
        parts += [np.zeros(rng.integers(800, 6400)), clips[digit][rng.integers(len(clips[digit]))]]
    samples = np.concatenate([*parts, np.zeros(RATE // 2)]) * rng.uniform(0.3, 1.0)
    return (samples + rng.normal(0, rng.uniform(1e-4, 3e-3), len(samples))).astype(np.float32)


def write_wav(path: Path, samples: Samples) -> None:
    """Write a wav file of one channel, 16 bits and 16 kHz."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((samples * 32767).clip(-32768, 32767).astype("<i2").tobytes())


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2 or not (arguments[0].isascii() and arguments[0].isdigit()):
        sys.stderr.write("usage: python3 spoken_digits.py DIGITS WAV\n")
        return 2
    digits, path = arguments
    try:
        clips = [[speak(word, *UNHEARD[0])] for word in WORDS]
    except NotSpoken as exc:
        sys.stderr.write(f"error: {exc}\n")
        return 1
    write_wav(Path(path), say(clips, [int(digit) for digit in digits], np.random.default_rng(1)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
