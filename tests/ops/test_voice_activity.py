"""services/voice_activity: streams that share batches get the probabilities of the model run alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import yaml

from client.errors import RequestRefused
from client.voice_activity import VoiceActivityClient, Window, read_windows
from tests.support.free_ports import free_port
from tests.support.service_process import ROOT, ServiceProcess
from tests.support.voice_models import SILERO, score_alone, write_vad_model, write_wav

STREAMS, SAMPLES = 8, 40 * 512 + 77


class Vad(NamedTuple):
    """A running service, and the model that it serves."""

    service: ServiceProcess
    model: Path

    def connect(self) -> VoiceActivityClient:
        return VoiceActivityClient(self.service.rpc_address, timeout_s=60)

    def score(self, windows: list[Window]) -> list[float]:
        with self.connect() as client:
            return [probability for _, probability in client.score_windows(windows)]


@pytest.fixture(scope="module", params=["small", *(["silero"] if SILERO else [])])
def vad(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vad]:
    folder = tmp_path_factory.mktemp("vad") / "voice_activity"
    shutil.copytree(ROOT / "services/voice_activity", folder, ignore=shutil.ignore_patterns("*.onnx"))
    model = folder / "silero_vad" / "silero_vad.onnx"
    if request.param == "silero":
        shutil.copy(SILERO, model)
    else:
        write_vad_model(model)
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    config = yaml.safe_load((folder / "config.yml").read_text("utf-8"))
    (folder / "config.yml").write_text(yaml.safe_dump(config | ports), "utf-8")
    with ServiceProcess(folder, ports, name="voice_activity") as service:
        yield Vad(service, model)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[list[Window]]:
    """Streams of noise, as loud as speech at times."""
    folder, random = tmp_path_factory.mktemp("recordings"), np.random.default_rng(3)
    loudness = np.repeat(random.choice([10, 3000, 20000], (STREAMS, 8)), SAMPLES // 8 + 1, axis=1)
    noise = random.uniform(-1, 1, (STREAMS, SAMPLES)) * loudness[:, :SAMPLES]
    return [list(read_windows(write_wav(folder / f"{n}.wav", row))) for n, row in enumerate(noise)]


def test_streams_at_once_are_answered_as_the_model_alone(vad: Vad, recordings: list[list[Window]]) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(vad.score, recordings))
    for answer, windows in zip(answers, recordings, strict=True):
        assert answer == pytest.approx(score_alone(vad.model, windows), abs=1e-5)
    assert len({round(answer[-1], 6) for answer in answers}) > 1


def test_a_stream_goes_on_beside_one_that_is_broken_off(vad: Vad, recordings: list[list[Window]]) -> None:
    first, second = recordings[:2]
    with vad.connect() as client, vad.connect() as other:
        broken, answers = client.score_windows(first), other.score_windows(second)
        found = []
        for number, (_, probability) in enumerate(answers):
            found.append(probability)
            if number < 10:
                next(broken)
    assert found == pytest.approx(score_alone(vad.model, second), abs=1e-5)
    assert vad.score(first) == pytest.approx(score_alone(vad.model, first), abs=1e-5)


def test_a_window_of_no_stream_is_refused(vad: Vad, recordings: list[list[Window]]) -> None:
    with vad.connect() as client, pytest.raises(RequestRefused, match="sequence"):
        client.score_window(recordings[0][0], "unknown", is_first=False)
