"""services/speech_recognition: trained on speech of espeak-ng, served as a repository and as a script."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from client.errors import ClientError
from client.speech_recognition import SpeechClient, read_recording, transcribe_file
from client.wav_file import RATE, Chunk
from tests.support.free_ports import free_port
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import ROOT, ServiceProcess

NUMBERS = ["2", "31415", "90876"]
SHORT_TRAINING = ["--skip", "6", "--utterances", "400", "--epochs", "6"]
MODEL, STREAM, SCRIPT = "digits", "digits_stream", "speech_recognition"
HOUR = 3600 * RATE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The service, trained."""
    assert shutil.which("espeak-ng"), "there is no espeak-ng here; `make test-system` installs it"
    folder = tmp_path_factory.mktemp("speech") / SCRIPT
    shutil.copytree(ROOT / "services" / SCRIPT, folder, ignore=shutil.ignore_patterns("*.onnx"))
    command = [sys.executable, str(folder / "train.py"), *SHORT_TRAINING]
    trained = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    match = re.search(r"not trained: (\S+)", trained.stdout)
    assert match is not None and float(match[1]) > 0.3, trained.stdout
    return folder


@pytest.fixture(scope="module")
def recordings(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = [tmp_path_factory.getbasetemp() / f"{number}.wav" for number in NUMBERS]
    for number, path in zip(NUMBERS, paths, strict=True):
        subprocess.run([sys.executable, str(folder / "spoken_digits.py"), number, str(path)], check=True)
    return paths


@pytest.fixture(scope="module")
def repository(folder: Path) -> Iterator[RepositoryProcess]:
    with RepositoryProcess(folder / "model_repo") as process:
        yield process


def transcribe(client: SpeechClient, path: Path) -> str:
    (text,) = transcribe_file(client, path, MODEL)
    return text


def test_recordings_and_streams_have_the_same_text_in_both_forms(
    folder: Path, repository: RepositoryProcess, recordings: list[Path]
) -> None:
    with SpeechClient(repository.rpc_address) as client:
        texts = [transcribe(client, path) for path in recordings]
        assert texts[0] and re.fullmatch(r"\d+", "".join(texts))
        streamed = [[*transcribe_file(client, path, STREAM, stream=True)] for path in recordings]
    assert [parts[-1] for parts in streamed] == texts
    assert len(streamed[1]) > 2
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    config = (folder / "config.yml").read_text("utf-8")
    for key, port in ports.items():
        config = re.sub(rf"^{key}: \d+", f"{key}: {port}", config, flags=re.M)
    (folder / "config.yml").write_text(config, "utf-8")
    arguments = ["pipeline", "run", str(folder)]
    with (
        ServiceProcess("-m", ports, name=SCRIPT, arguments=arguments, folder=ROOT) as script,
        SpeechClient(script.rpc_address) as client,
    ):
        assert [[*transcribe_file(client, path, SCRIPT)] for path in recordings] == [[text] for text in texts]


def test_clients_at_once_get_the_text_of_their_own_recording(
    repository: RepositoryProcess, recordings: list[Path]
) -> None:
    with SpeechClient(repository.rpc_address) as client, ThreadPoolExecutor(8) as pool:
        alone = [transcribe(client, path) for path in recordings]
        assert [*pool.map(lambda path: transcribe(client, path), recordings * 8)] == alone * 8


def test_an_hour_of_audio_is_refused_and_others_are_answered(
    repository: RepositoryProcess, recordings: list[Path]
) -> None:
    with SpeechClient(repository.rpc_address) as client:
        before = transcribe(client, recordings[0])
        with pytest.raises(ClientError, match="larger than max"):
            client.transcribe(Chunk(bytes(4 * HOUR), HOUR, True), MODEL)
        assert transcribe(client, recordings[0]) == before
        assert client.transcribe(read_recording(recordings[0]), MODEL) == before
