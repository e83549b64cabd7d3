"""Trains a recogniser of spoken digits for the script and the repository: minutes on two cores.

The features need `pip install "./compat[speech]"`. The model is causal: recordings and streams use the same
weights.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from onnx import TensorProto, helper, numpy_helper, save_model
from paddle import nn
from rich.console import Console
from spoken_digits import RATE, UNHEARD, WORDS, NotSpoken, Samples, say, speak

from convert.cli import ShownSteps
from convert.demo.fitting import Schedule, fit, seed_training
from convert.steps.progress import Steps

HERE = Path(__file__).resolve().parent
VOICES = ("en", "en-us", "en-gb-scotland", "en-029", "en+m3", "en-us+m7", "en+f2", "en-us+f4")
SPEEDS, PITCHES = (120, 150, 180), (35, 50, 65)
BINS, SUBSAMPLING = 80, 4
WIDTH, LAYERS, KERNEL, BEAM = 96, 5, 5, 4
CHUNK_FRAMES = 64
BATCH, LONGEST, SEED = 16, 6, 32


class Utterance(NamedTuple):
    """Features [frames, bins] of a spoken number, and its digits."""

    features: Samples
    digits: list[int]


def compute_features(samples: Samples) -> Samples:
    from kaldifeat import Fbank, FbankOptions

    options = FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = RATE
    options.mel_opts.num_bins = BINS
    return np.asarray(Fbank(options)(samples * 32768), np.float32)


def create_utterances(
    clips: Sequence[Sequence[Samples]], count: int, rng: np.random.Generator
) -> Iterator[Utterance]:
    for _ in range(count):
        digits = rng.integers(0, 10, rng.integers(1, LONGEST + 1)).tolist()
        yield Utterance(compute_features(say(clips, digits, rng)), digits)


class Encoder(nn.Layer):
    """Causal convolutions over stacked frames; the output has the scores of blank and of each digit."""

    def __init__(self, mean: Samples, deviation: Samples) -> None:
        super().__init__()
        self.mean, self.scale = paddle.to_tensor(mean), paddle.to_tensor(1 / deviation)
        self.first = nn.Linear(BINS * SUBSAMPLING, WIDTH)
        self.layers = nn.LayerList([nn.Conv1D(WIDTH, WIDTH, KERNEL) for _ in range(LAYERS)])
        self.last = nn.Linear(WIDTH, 1 + len(WORDS))

    def forward(self, speech: Any) -> Any:
        stacked = ((speech - self.mean) * self.scale).reshape([speech.shape[0], -1, BINS * SUBSAMPLING])
        hidden = nn.functional.relu(self.first(stacked)).transpose([0, 2, 1])
        for layer in self.layers:
            padded = nn.functional.pad(hidden, [KERNEL - 1, 0], data_format="NCL")
            hidden = hidden + nn.functional.relu(layer(padded))
        return self.last(hidden.transpose([0, 2, 1]))


def pad_features(utterances: Sequence[Utterance]) -> Samples:
    """Return the features of utterances as rows of whole outputs; zeros fill the shorter rows."""
    longest = max(len(u.features) for u in utterances)
    rows = np.zeros((len(utterances), -(-longest // SUBSAMPLING) * SUBSAMPLING, BINS), np.float32)
    for row, utterance in zip(rows, utterances, strict=True):
        row[: len(utterance.features)] = utterance.features
    return rows


def create_batches(utterances: Sequence[Utterance], epochs: int, rng: np.random.Generator) -> Iterator[Any]:
    """Yield batches of features, and of targets: digits, their number, and the number of outputs."""
    for _ in range(epochs):
        order = rng.permutation(len(utterances))
        for at in range(0, len(order) - BATCH + 1, BATCH):
            batch = [utterances[number] for number in order[at : at + BATCH]]
            targets = np.zeros((BATCH, LONGEST + 2), np.int32)
            for row, utterance in zip(targets, batch, strict=True):
                row[: len(utterance.digits)] = np.add(utterance.digits, 1)
                row[LONGEST:] = len(utterance.digits), -(-len(utterance.features) // SUBSAMPLING)
            yield {"speech": pad_features(batch)}, targets


def compute_loss(scores: Any, targets: Any) -> Any:
    digits, lengths, outputs = targets[:, :LONGEST], targets[:, LONGEST], targets[:, LONGEST + 1]
    return nn.functional.ctc_loss(
        scores.transpose([1, 0, 2]), digits, outputs.astype("int64"), lengths.astype("int64"), blank=0
    )


def decode(scores: Samples) -> list[int]:
    """Return the digits of the best path."""
    best = scores.argmax(axis=-1)
    tokens = best[np.flatnonzero(np.diff(best, prepend=0))]
    return [int(token) - 1 for token in tokens if token]


def measure(encoder: Any, utterances: Sequence[Utterance]) -> float:
    """Return the share of utterances whose digits are all recognised."""
    right = 0
    for utterance in utterances:
        scores = encoder(paddle.to_tensor(pad_features([utterance]))).numpy()[0]
        right += decode(scores[: -(-len(utterance.features) // SUBSAMPLING)]) == utterance.digits
    return right / len(utterances)


class _Graph:
    """Collects the nodes of an ONNX graph."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, op: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> str:
        names = list(outputs) or [f"n{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0]


def build_onnx(encoder: Any, *, streaming: bool) -> Any:
    """Return the encoder with the outputs that WeNet's encoders have.

    streaming: each convolution continues with the last inputs of the previous chunk, its cache.
    """
    graph, cached = _Graph(), KERNEL - 1
    weights = {name: value.numpy() for name, value in encoder.state_dict().items()}
    speech, lengths = ("chunk_xs", "chunk_lens") if streaming else ("speech", "speech_lengths")
    ints = TensorProto.INT64, TensorProto.INT32
    scaled = graph.add("Sub", speech, graph.constant(encoder.mean.numpy()))
    scaled = graph.add("Mul", scaled, graph.constant(encoder.scale.numpy()))
    stacked = graph.add("Reshape", scaled, graph.constant(np.array([0, -1, BINS * SUBSAMPLING])))
    hidden = graph.add("MatMul", stacked, graph.constant(weights["first.weight"]))
    hidden = graph.add("Relu", graph.add("Add", hidden, graph.constant(weights["first.bias"])))
    hidden = graph.add("Transpose", hidden, perm=[0, 2, 1])
    caches = [f"cache{number}" for number in range(LAYERS)]
    if streaming:
        rows = [f"{name}_row" for name in caches]
        graph.add("Split", "cnn_cache", outputs=rows, axis=1, num_outputs=LAYERS)
    for number, name in enumerate(caches):
        padded, pads = hidden, [cached, 0]
        if streaming:
            cache = graph.add("Squeeze", f"{name}_row", graph.constant(np.array([1])))
            padded, pads = graph.add("Concat", cache, hidden, axis=2), [0, 0]
            bounds = (np.array([-cached]), np.array([1 << 31]), np.array([2]))
            tail = graph.add("Slice", padded, *map(graph.constant, bounds))
            graph.add("Unsqueeze", tail, graph.constant(np.array([1])), outputs=[f"{name}_next"])
        kernel = (weights[f"layers.{number}.{part}"] for part in ("weight", "bias"))
        output = graph.add("Conv", padded, *map(graph.constant, kernel), pads=pads)
        hidden = graph.add("Add", hidden, graph.add("Relu", output))
    scores = graph.add("Transpose", hidden, perm=[0, 2, 1])
    scores = graph.add("MatMul", scores, graph.constant(weights["last.weight"]))
    scores = graph.add("Add", scores, graph.constant(weights["last.bias"]))
    log_probs = graph.add("LogSoftmax", scores, axis=-1)
    names = ("log_probs", "log_probs_idx") if streaming else ("beam_log_probs", "beam_log_probs_idx")
    graph.add("TopK", log_probs, graph.constant(np.array([BEAM])), outputs=names, axis=-1)
    counted = "chunk_out_lens" if streaming else "encoder_out_lens"
    rounded = graph.add("Add", lengths, graph.constant(np.array(SUBSAMPLING - 1, np.int32)))
    graph.add("Div", rounded, graph.constant(np.array(SUBSAMPLING, np.int32)), outputs=[counted])
    frames: Any = CHUNK_FRAMES if streaming else "frames"
    feeds = [(speech, TensorProto.FLOAT, [frames, BINS]), (lengths, ints[1], [])]
    fetches = [(names[0], TensorProto.FLOAT, ["outputs", BEAM]), (names[1], ints[0], ["outputs", BEAM])]
    fetches.append((counted, ints[1], []))
    if streaming:
        graph.add("Concat", *(f"{name}_next" for name in caches), outputs=["r_cnn_cache"], axis=1)
        feeds.append(("cnn_cache", TensorProto.FLOAT, [LAYERS, WIDTH, cached]))
        fetches.append(("r_cnn_cache", TensorProto.FLOAT, [LAYERS, WIDTH, cached]))
    values = [
        [helper.make_tensor_value_info(name, kind, ["rows", *dims]) for name, kind, dims in side]
        for side in (feeds, fetches)
    ]
    body = helper.make_graph(graph.nodes, "digits", *values, graph.constants)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def train(options: argparse.Namespace, steps: Steps) -> float:
    """Train, write the models, and return the share of numbers that are recognised in unheard voices."""
    seed_training(SEED)
    rng = np.random.default_rng(SEED)
    steps.step("Speaking the digits", len(WORDS))
    clips = []
    heard = [(voice, speed, pitch) for voice in VOICES for speed in SPEEDS for pitch in PITCHES]
    for word in WORDS:
        clips.append([speak(word, *how) for how in heard[:: options.skip]])
        steps.advance()
    steps.step("Computing features")
    utterances = list(create_utterances(clips, options.utterances, rng))
    frames = np.concatenate([utterance.features for utterance in utterances])
    encoder = Encoder(frames.mean(axis=0), frames.std(axis=0))
    total = options.epochs * (len(utterances) // BATCH)
    steps.step(f"Training {options.epochs} epochs", total)
    schedule = Schedule(learning_rate=2e-3)
    fit(encoder, create_batches(utterances, options.epochs, rng), compute_loss, total, schedule, steps)
    for path, streaming in (
        ("model/encoder.onnx", False),
        ("model_repo/digit_encoder/1/model.onnx", False),
        ("model_repo/stream_encoder/1/model.onnx", True),
    ):
        (options.out / path).parent.mkdir(parents=True, exist_ok=True)
        save_model(build_onnx(encoder, streaming=streaming), str(options.out / path))
    unheard = [[speak(word, *how) for how in UNHEARD] for word in WORDS]
    return measure(encoder, list(create_utterances(unheard, 100, rng)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the models (%(default)s)")
    parser.add_argument("--utterances", type=int, default=600, help="of 1 to 6 digits (%(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="(%(default)s)")
    parser.add_argument("--skip", type=int, default=3, help="take one of so many of 72 voices (%(default)s)")
    options = parser.parse_args()
    console = Console(highlight=False)
    try:
        with ShownSteps(console) as steps:
            share = train(options, steps)
    except (NotSpoken, ImportError) as exc:
        console.print(f"error: {exc}", style="red")
        return 2
    console.print(f"numbers recognised in voices that were not trained: {share:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
