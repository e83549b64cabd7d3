"""BERT classifiers with random weights, as serving models of the demo's size and of BERT-base's.

Each exists twice with the same weights: as a Paddle program and as an ONNX model. Run as `python -m
bench.bert_models FOLDER SIZE`. It needs paddle2onnx, here or by `make convert-env`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from convert.demo.headlines import LABELS, Headline, read_headlines, vocabulary, vocabulary_text
from pipeline.models.serving_model import (
    SAMPLE_FILE,
    SERVER_FOLDER,
    FeedPadding,
    Padding,
    Variable,
    write_serving_model,
)

SIZES: dict[str, dict[str, int]] = {
    "2x128": {},
    "12x768": {"hidden": 768, "layers": 12, "heads": 12, "feed_forward": 3072},
}
NAMES = ("input_ids", "token_type_ids", "attention_mask")
PADDLE, ONNX = "paddle", "onnx"  # the folders of the two forms
LONGEST = 512  # tokens
_SAMPLE = 512  # minimum number of headlines to fit the classifier and to check `precision: auto`
_RIDGE = 3e-2
_SHARPNESS = 10.0  # of the answers: logits fitted to 0 and 1 would make all classes similarly likely
_BATCH = 32


def make_models(folder: Path, size: str) -> None:
    """Write both forms of one size below the folder, unless they exist."""
    if (folder / ONNX).is_dir():
        return
    from convert.demo.bert_classifier import BertClassifier, BertSize
    from convert.programs.engines import import_paddle
    from convert.to_serving.build_serving_model import store_texts

    import_paddle().seed(1)
    model = BertClassifier(BertSize(len(vocabulary()), len(LABELS), positions=LONGEST, **SIZES[size]))
    model.eval()
    headlines = read_headlines()
    chosen = headlines[:: len(headlines) // _SAMPLE]  # of all classes
    _fit_classifier(model, chosen)
    _write(model, folder)
    np.savez_compressed(folder / ONNX / SERVER_FOLDER / SAMPLE_FILE, **_feeds(chosen))
    store_texts(folder / ONNX, [headline.text for headline in chosen])


def _fit_classifier(model: Any, headlines: tuple[Headline, ...]) -> None:
    """Fit the last layer to the headlines' classes by least squares.

    With random weights, two classes would often differ by rounding alone, unlike those of a real model.
    """
    from convert.demo.training import class_ids
    from convert.programs.engines import import_paddle

    paddle = import_paddle()
    features: list[Any] = []
    hook = model.classifier.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].numpy()))
    with paddle.no_grad():
        for start in range(0, len(headlines), _BATCH):
            model(*map(paddle.to_tensor, _feeds(headlines[start : start + _BATCH]).values()))
    hook.remove()
    pooled = np.concatenate(features).astype("float64")
    mean = pooled.mean(axis=0)
    centred = pooled - mean
    targets = np.eye(len(LABELS))[class_ids(headlines)]
    scale = _RIDGE * np.trace(centred.T @ centred) / centred.shape[1]
    weight = np.linalg.solve(
        centred.T @ centred + scale * np.eye(centred.shape[1]), centred.T @ (targets - targets.mean(axis=0))
    )
    bias = targets.mean(axis=0) - mean @ weight
    model.classifier.weight.set_value((_SHARPNESS * weight).astype("float32"))
    model.classifier.bias.set_value((_SHARPNESS * bias).astype("float32"))


def _feeds(headlines: tuple[Headline, ...]) -> dict[str, Any]:
    from convert.demo.training import demo_tokenizer, encode, pad

    return pad(encode(demo_tokenizer(vocabulary()), headlines))


def _write(model: Any, folder: Path) -> None:
    from convert.from_paddle.export import export_layer
    from convert.paddle_onnx.to_onnx import MODEL_FILE, convert_to_onnx
    from convert.programs.program_feeds import ProgramTensor
    from convert.result import ConversionOptions

    with tempfile.TemporaryDirectory() as work:
        paddle, onnx, words = (Path(work, name) for name in (PADDLE, ONNX, "vocab.txt"))
        words.write_text(vocabulary_text(), encoding="utf-8")
        program = export_layer(model, [ProgramTensor(name, "int64", (-1, -1)) for name in NAMES], paddle)
        convert_to_onnx(paddle, onnx, options=ConversionOptions(lengths=(16,)))
        feeds = [Variable(name, name, "int64", (-1, -1)) for name in NAMES]
        fetches = [Variable(fetch.name, "logits", fetch.dtype, fetch.shape) for fetch in program.fetches]
        settings: dict[str, Any] = {
            "padding": Padding({name: FeedPadding(axis=1, value=0) for name in NAMES}, {}),
            "labels": LABELS,
            "additions": {"max_lengths": {name: {"axis": 1, "length": LONGEST} for name in NAMES}},
            "extra_files": [words],
        }
        write_serving_model(folder / PADDLE, program.program, program.params, feeds, fetches, **settings)
        write_serving_model(folder / ONNX, onnx / MODEL_FILE, None, feeds, fetches, **settings)


if __name__ == "__main__":
    make_models(Path(sys.argv[1]), sys.argv[2])
