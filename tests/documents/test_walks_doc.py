"""docs/walks.md: the walk without a conversion answers, and every command of the others has known options."""

from __future__ import annotations

import json
import re
import wave
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from tests.support.command_line import paddlewheel
from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT

PAGE, CHINESE = (ROOT / "docs" / name for name in ("walks.md", "walks_zh.md"))
RATE, WINDOW = 16000, 512


def write_loudness_model(path: Path) -> None:
    """Write a model with the tensors of Silero VAD, which calls loud windows speech."""
    inputs = [
        helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", "samples"]),
        helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, "batch", 128]),
        helper.make_tensor_value_info("sr", TensorProto.INT64, []),
    ]
    outputs = [
        helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 1]),
        helper.make_tensor_value_info("stateN", TensorProto.FLOAT, [2, "batch", 128]),
    ]
    nodes = [
        helper.make_node("ReduceL2", ["input"], ["loudness"], axes=[1], keepdims=1),
        helper.make_node("Sub", ["loudness", "threshold"], ["difference"]),
        helper.make_node("Sigmoid", ["difference"], ["output"]),
        helper.make_node("Cast", ["sr"], ["rate"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["state", "rate"], ["stateN"]),
    ]
    constants = [numpy_helper.from_array(np.float32([[4]]), "threshold")]
    graph = helper.make_graph(nodes, "vad", inputs, outputs, constants)
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def write_talk(path: Path) -> None:
    """Write 32 quiet windows, 32 loud windows, and a part of a window."""
    tone = np.sin(np.arange(32 * WINDOW) / 5) * 20000
    samples = np.concatenate([0 * tone, tone, np.zeros(100)])
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())


def test_the_walk_from_a_wav_to_segments(tmp_path: Path) -> None:
    write_loudness_model(tmp_path / "silero_vad.onnx")
    write_talk(tmp_path / "talk.wav")
    reader = Reader(tmp_path)
    reader.follow(PAGE)
    ((answer, shown),) = reader.answers
    assert answer.status == 200 and shown["predictions"][0].keys() == {"starts", "ends"}
    (segments,) = json.loads(answer.body)["predictions"]
    assert segments == {"starts": [1.024], "ends": [2.048]}


@pytest.mark.parametrize("language", ["bash", "sh"])
def test_no_walk_has_more_than_four_commands(language: str) -> None:
    walks = [block.text.splitlines() for block in blocks_of(PAGE) if block.language == language]
    assert walks and all(len(commands) <= 4 for commands in walks)


def test_every_option_is_known() -> None:
    text = PAGE.read_text("utf-8")
    commands = re.findall(r"paddlewheel (convert-env|convert all|new|text|run)\b([^\n]*)", text)
    assert {name for name, _ in commands} == {"convert-env", "convert all", "new", "text", "run"}
    for name in {name for name, _ in commands}:
        known = paddlewheel(*name.split(), "--help").stdout
        options = {
            option for command, rest in commands if command == name for option in re.findall(r"--\w+", rest)
        }
        assert all(option in known for option in options), (name, options)


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
