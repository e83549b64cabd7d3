"""Repositories in WeNet's form, offline and streaming, asked with the stock client."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc

from client.speech_recognition import main
from tests.support.repository_process import RepositoryProcess
from tests.support.voice_models import write_wav
from tests.support.wenet_repository import (
    CHUNK_S,
    FIRST_CHUNK,
    RATE,
    speak,
    write_offline,
    write_streaming,
)

CLIENTS = 8
TEXTS = ["a", "abcd", "ddd", "cabbadacab", "", "bad", "cdcdcdcd", "dabc"]


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    with RepositoryProcess(write_offline(tmp_path_factory.mktemp("wenet") / "offline")) as process:
        yield process


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    with RepositoryProcess(write_streaming(tmp_path_factory.mktemp("wenet") / "streaming")) as process:
        yield process


def wave_inputs(*waves: np.ndarray[Any, Any]) -> list[rpc.InferInput]:
    """The tensors of a request; zeros fill the shorter waves."""
    rows = np.zeros((len(waves), max(map(len, waves))), np.float32)
    for row, wave in zip(rows, waves, strict=True):
        row[: len(wave)] = wave
    inputs = [
        rpc.InferInput("WAV", list(rows.shape), "FP32"),
        rpc.InferInput("WAV_LENS", [len(rows), 1], "INT32"),
    ]
    inputs[0].set_data_from_numpy(rows)
    inputs[1].set_data_from_numpy(np.array([[len(wave)] for wave in waves], np.int32))
    return inputs


def transcribe(client: rpc.InferenceServerClient, wave: np.ndarray[Any, Any]) -> str:
    answer = client.infer("attention_rescoring", wave_inputs(wave))
    (transcript,) = answer.as_numpy("TRANSCRIPTS").ravel()
    return str(transcript.decode())


def split_wave(wave: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The chunks of a stream; the first chunk fills the window of the encoder."""
    chunk = int(CHUNK_S * RATE)
    starts = [0, *range(FIRST_CHUNK, max(len(wave), FIRST_CHUNK + 1), chunk)]
    ends = [FIRST_CHUNK, *(start + chunk for start in starts[1:])]
    padded = np.concatenate([wave, np.zeros(ends[-1] - len(wave), np.float32)])
    return [padded[start:end] for start, end in zip(starts, ends, strict=True)]


def stream(client: rpc.InferenceServerClient, text: str, sequence_id: int) -> list[str]:
    """The transcripts after each chunk of a stream."""
    chunks, transcripts = split_wave(speak(text)), []
    for number, chunk in enumerate(chunks):
        answer = client.infer(
            "streaming_wenet", wave_inputs(chunk), sequence_id=sequence_id, sequence_start=number == 0,
            sequence_end=number == len(chunks) - 1,
        )  # fmt: skip
        transcripts.append(answer.as_numpy("TRANSCRIPTS").ravel()[0].decode())
    return transcripts


def test_waves_of_several_lengths_are_transcribed_by_many_clients_at_once(offline: RepositoryProcess) -> None:
    chance = random.Random(32)
    texts = ["".join(chance.choices("abcd", k=chance.randrange(1, 12))) for _ in range(40)]
    with rpc.InferenceServerClient(offline.rpc_address) as client, ThreadPoolExecutor(CLIENTS) as clients:
        assert list(clients.map(lambda text: transcribe(client, speak(text)), texts)) == texts


def test_a_request_may_have_waves_of_several_lengths(offline: RepositoryProcess) -> None:
    texts = ["abcd", "d", "cab"]
    with rpc.InferenceServerClient(offline.rpc_address) as client:
        answer = client.infer("attention_rescoring", wave_inputs(*map(speak, texts)))
        assert [text.decode() for text in answer.as_numpy("TRANSCRIPTS").ravel()] == texts


def test_the_decoder_chooses_among_the_hypotheses(offline: RepositoryProcess) -> None:
    with rpc.InferenceServerClient(offline.rpc_address) as client:
        # The beam search prefers the louder tone, whose character the decoder refuses.
        assert transcribe(client, speak("d") + 1.2 * speak("e")) == "d"


def test_hotwords_change_the_text(offline: RepositoryProcess) -> None:
    with rpc.InferenceServerClient(offline.rpc_address) as client:
        assert transcribe(client, speak("fa")) == "fa"
        assert transcribe(client, speak("af")) != "af"  # which has a weight of -1000


def test_a_wave_without_frames_has_no_text(offline: RepositoryProcess) -> None:
    with rpc.InferenceServerClient(offline.rpc_address) as client:
        assert transcribe(client, np.zeros(100, np.float32)) == ""
        assert transcribe(client, speak("abc")) == "abc"


def test_the_client_prints_the_text_of_a_recording_and_of_a_stream(
    offline: RepositoryProcess,
    streaming: RepositoryProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, text = tmp_path / "talk.wav", "cabbadacab"
    write_wav(path, speak(text) * 32768)
    assert main([str(path), "--address", offline.rpc_address]) == 0
    assert capsys.readouterr().out == f"{text}\n"
    assert main([str(path), "--address", streaming.rpc_address, "--stream"]) == 0
    *parts, last = capsys.readouterr().out.splitlines()
    assert last == text and len(parts) > 1 and all(last.startswith(part) for part in parts)
    write_wav(path, speak("d") * 32768)
    assert main([str(path), "--address", streaming.rpc_address, "--stream"]) == 0
    assert capsys.readouterr().out == "d\n"
    write_wav(path, np.zeros(0))
    assert main([str(path), "--address", offline.rpc_address]) == 1
    assert capsys.readouterr().err == "ValueError: the wav file has no audio\n"


def test_streams_give_the_text_chunk_by_chunk(streaming: RepositoryProcess) -> None:
    texts = [text for text in TEXTS if text]
    with rpc.InferenceServerClient(streaming.rpc_address) as client, ThreadPoolExecutor(CLIENTS) as clients:
        transcripts = list(clients.map(stream, itertools.repeat(client), texts, range(1, 9)))
    assert [each[-1] for each in transcripts] == texts
    for parts in transcripts:
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(parts))
    assert len(transcripts[texts.index("cabbadacab")]) > 2
