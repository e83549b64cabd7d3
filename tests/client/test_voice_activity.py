"""The client that streams a wav: windows, segments, requests of a sequence, and the script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.voice_activity import (
    CONTEXT,
    RATE,
    WINDOW,
    Segment,
    Segmenter,
    VoiceActivityClient,
    Window,
    find_segments,
    main,
    pace_windows,
    read_windows,
)
from tests.support.v2_server import V2Model, V2Server
from tests.support.voice_models import write_talk, write_wav

TALK = "1.024 - 2.048 s\n"


def loud(arrays: dict[str, Any]) -> dict[str, Any]:
    is_loud = np.linalg.norm(arrays["input"], axis=1, keepdims=True) > 4
    return {"output": is_loud.astype(np.float32)}


def loud_model() -> V2Model:
    return V2Model({"input": ("FP32", [-1, -1])}, {"output": ("FP32", [-1, 1])}, loud)


class TestWindows:
    def test_each_has_the_end_of_the_window_before(self, tmp_path: Path) -> None:
        samples = np.arange(1, 2 * WINDOW + 101)
        windows = list(read_windows(write_wav(tmp_path / "a.wav", samples)))
        arrays = [np.frombuffer(window.samples, "<f4") * 32768 for window in windows]
        padded = np.concatenate([np.zeros(CONTEXT), samples, np.zeros(WINDOW - 100)])
        for number, array in enumerate(arrays):
            assert array.tolist() == padded[number * WINDOW :][: CONTEXT + WINDOW].tolist()
        times = [(window.start_s, window.end_s, window.is_last) for window in windows]
        assert times == [
            (0, 0.032, False),
            (0.032, 0.064, False),
            (0.064, pytest.approx(0.064 + 100 / RATE), True),
        ]

    @pytest.mark.parametrize("samples", [1, WINDOW, 2 * WINDOW])
    def test_one_window_is_the_last(self, samples: int, tmp_path: Path) -> None:
        windows = list(read_windows(write_wav(tmp_path / "a.wav", np.zeros(samples))))
        assert [window.is_last for window in windows] == [False] * (len(windows) - 1) + [True]

    def test_a_file_that_ends_early_is_read_as_far_as_it_goes(self, tmp_path: Path) -> None:
        path = write_wav(tmp_path / "a.wav", np.zeros(3 * WINDOW))
        path.write_bytes(path.read_bytes()[: -2 * WINDOW])
        assert [window.is_last for window in read_windows(path)] == [False, True]

    @pytest.mark.parametrize(
        ("rate", "channels", "samples", "told"),
        [
            (8000, 1, 512, "has 1 channels of 16 bits at 8000 Hz; convert it to mono, 16 bits and 16000 Hz"),
            (16000, 2, 512, "has 2 channels of 16 bits at 16000 Hz"),
            (16000, 1, 0, "the wav file has no audio"),
        ],
    )
    def test_another_form_is_refused(
        self, rate: int, channels: int, samples: int, told: str, tmp_path: Path
    ) -> None:
        path = write_wav(tmp_path / "a.wav", np.zeros(samples), rate, channels)
        with pytest.raises(ValueError, match=told):
            list(read_windows(path))

    @pytest.mark.parametrize("data", [b"", b"RIFF", b"no wav file, but text of some length"])
    def test_other_bytes_are_refused(self, data: bytes, tmp_path: Path) -> None:
        (tmp_path / "a.wav").write_bytes(data)
        with pytest.raises(ValueError, match="is no wav file"):
            list(read_windows(tmp_path / "a.wav"))

    def test_a_microphone_has_them_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [5.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        monkeypatch.setattr("time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
        windows = [Window(0, 1, b"", False), Window(1, 2, b"", False), Window(2, 3, b"", True)]
        times = []
        for _ in pace_windows(windows):
            times.append(now[0])
            now[0] += 1.5  # the answer is late, the next window too
        assert times == [6.0, 7.5, 9.0]


@pytest.mark.parametrize(
    ("probabilities", "segments"),
    [
        ([0.1, 0.9, 0.9, 0.1, 0.1, 0.1], [(1, 3)]),
        ([0.9, 0.1, 0.9, 0.1, 0.1, 0.1], [(0, 3)]),
        ([0.9, 0.1, 0.1, 0.9], [(0, 1), (3, 4)]),
        ([0.5, 0.4, 0.0], []),
        ([0.1, 0.9], [(1, 2)]),
    ],
)
def test_pauses_longer_than_a_limit_end_a_segment(
    probabilities: list[float], segments: list[tuple[float, float]]
) -> None:
    segmenter = Segmenter(0.5, pause_s=1)
    found = [
        segmenter.add(Window(second, second + 1, b"", False), probability)
        for second, probability in enumerate(probabilities)
    ]
    assert [segment for segment in (*found, segmenter.finish()) if segment] == segments


def test_the_windows_of_a_file_are_a_sequence_of_requests(tmp_path: Path) -> None:
    path, model = write_talk(tmp_path / "talk.wav"), loud_model()
    with V2Server({"vad": model}) as server, VoiceActivityClient(f"127.0.0.1:{server.port}", "vad") as client:
        for _ in range(2):
            assert list(find_segments(client, read_windows(path), Segmenter())) == [Segment(1.024, 2.048)]
    told = [dict(request.parameters) for request in model.requests]
    assert [one["sequence_start"].bool_param for one in told] == ([True] + [False] * 64) * 2
    assert [one["sequence_end"].bool_param for one in told] == ([False] * 64 + [True]) * 2
    identities = [one["sequence_id"].string_param for one in told]
    assert len(set(identities[:65])) == len(set(identities[65:])) == 1 and len(set(identities)) == 2


def test_the_script_prints_a_line_for_each_segment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_talk(tmp_path / "talk.wav"))
    with V2Server({"voice_activity": loud_model()}) as server:
        address = ("--address", f"127.0.0.1:{server.port}")
        assert main([path, *address]) == 0
        assert capsys.readouterr().out == TALK
        assert main([path, *address, "--json", "--threshold", "0.9"]) == 0
        assert json.loads(capsys.readouterr().out) == {"start": 1.024, "end": 2.048}
        assert main([path, *address, "--model", "other"]) == 1
        assert "RequestRefused: " in capsys.readouterr().err
        assert main([str(tmp_path / "none.wav"), *address]) == 1
        assert "none.wav" in capsys.readouterr().err


def test_another_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = V2Model(
        {"input": ("FP32", [-1, -1])}, {"output": ("FP32", [-1])}, lambda _: {"output": np.zeros(3, "f4")}
    )
    with V2Server({"voice_activity": other}) as server:
        assert main([str(write_talk(tmp_path / "a.wav")), "--address", f"127.0.0.1:{server.port}"]) == 1
    assert "did not answer a probability named 'output', of type FP32" in capsys.readouterr().err
