"""A small model with the tensors of Silero VAD, and recordings for it."""

from __future__ import annotations

import os
import wave
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, save_model

from client.voice_activity import RATE, WINDOW, Window

SILERO = os.environ.get("SILERO_VAD", "")
"""Path of the published silero_vad.onnx; empty where a machine has none."""


def write_vad_model(path: Path) -> Path:
    """Write a model that calls loud windows speech.

    Its state is the sum of all windows' loudness, so that each probability tells what came before.
    """
    inputs = [
        helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", "samples"]),
        helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, "batch", 128]),
        helper.make_tensor_value_info("sr", TensorProto.INT64, []),
    ]
    outputs = [
        helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 1]),
        helper.make_tensor_value_info("stateN", TensorProto.FLOAT, [None, None, None]),
    ]
    nodes = [
        helper.make_node("ReduceL2", ["input"], ["loudness"], axes=[1], keepdims=1),
        helper.make_node("Cast", ["sr"], ["rate"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["rate", "samples_of_1"], ["threshold"]),
        helper.make_node("Sub", ["loudness", "threshold"], ["difference"]),
        helper.make_node("Gather", ["state", "first"], ["layer"], axis=0),
        helper.make_node("Slice", ["layer", "begin", "end", "axis"], ["sum"]),
        helper.make_node("Mul", ["sum", "weight"], ["history"]),
        helper.make_node("Add", ["difference", "history"], ["score"]),
        helper.make_node("Sigmoid", ["score"], ["output"]),
        helper.make_node("Add", ["state", "loudness"], ["stateN"]),
    ]
    numbers = {"begin": [0], "end": [1], "axis": [1], "first": 0}
    constants = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()]
    floats = {"samples_of_1": RATE / 4, "weight": 0.001}
    constants += [numpy_helper.from_array(np.float32(value), name) for name, value in floats.items()]
    graph = helper.make_graph(nodes, "vad", inputs, outputs, constants)
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def score_alone(model: Path, windows: Iterable[Window]) -> list[float]:
    """The probabilities of one stream by ONNX Runtime, without a service."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    state, scores = np.zeros((2, 1, 128), np.float32), []
    for window in windows:
        samples = np.frombuffer(window.samples, "<f4")[None]
        feeds = {"input": samples, "state": state, "sr": np.array(RATE)}
        score, state = session.run(["output", "stateN"], feeds)
        scores.append(float(score[0, 0]))
    return scores


def write_wav(path: Path, samples: npt.NDArray[np.float64], rate: int = RATE, channels: int = 1) -> Path:
    """Write samples from -32768 to 32767 as 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return path


def write_talk(path: Path) -> Path:
    """Write 32 quiet windows, 32 loud windows, and a part of a window."""
    tone = np.sin(np.arange(32 * WINDOW) / 5) * 20000
    return write_wav(path, np.concatenate([0 * tone, tone, np.zeros(100)]))
