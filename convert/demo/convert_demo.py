"""Converts the demo's trained BERT classifier to a serving model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from convert.demo.headlines import HEADLINES_FILE, LABELS, Split, read_headlines, split_headlines, vocabulary
from convert.demo.trained_layer import convert_trained
from convert.output.staging import check_replaceable, hash_sources, is_current, staged, write_stamp
from convert.paddle_onnx.to_onnx import add_onnx_variant, can_make_onnx
from convert.programs.engines import import_paddle, paddle_version
from convert.proof.parity import ParityReport
from convert.result import Conversion, ConversionOptions
from convert.to_serving.build_serving_model import store_texts
from pipeline.errors import ConversionError
from pipeline.launch.commands import interpreter
from pipeline.models.variants import find_variants

ACCURACY_NEEDED = 0.65
FACTS_FILE = "accuracy.json"
WEIGHTS_FILE = Path(__file__).parent / "weights.npz"

_SOURCES = tuple(sorted(Path(__file__).parent.glob("*.py")))
_BATCH_SIZES = (1, 3, 8, 32)


def convert_demo(
    out: Path = Path("models/demo"),
    *,
    train_into: Path | None = None,
    options: ConversionOptions | None = None,
) -> Conversion:
    """Write the serving model of the demo's headline classifier, its vocabulary and reports to `out`.

    train_into: a file for the weights of a classifier that is trained first; None converts the project's
    weights. If `out` has a result of the same sources, it is kept, and Paddle is not imported. It is only
    converted again if its ONNX copy is missing and can be made here. Raises ParityError when a step changes
    the outputs, ConversionError when the held-out accuracy is below 0.65.
    """
    options = options or ConversionOptions()
    check_replaceable(out)
    if options.dry_run and train_into is not None:
        return Conversion(out, False, f"would train the demo and write {train_into} and {out}")
    if train_into is not None:
        options.steps.step("Importing Paddle")
        import_paddle()
        _train_classifier(train_into, options)
    weights = train_into or WEIGHTS_FILE
    fingerprint = demo_fingerprint(weights, options)
    if not options.force and is_current(out, fingerprint) and (find_variants(out) or not can_make_onnx()):
        return Conversion(out, False, f"{out} is up to date")
    if options.dry_run:
        return Conversion(out, False, f"would convert the demo and write {out}; nothing was written")
    options.steps.step("Importing Paddle")
    import_paddle()
    with staged(out) as folder:
        facts, reports = _convert_classifier(folder, weights, options)
        reports += add_onnx_variant(folder, out, options)
        write_stamp(folder, fingerprint, {"source": "demo"})
    message = (
        f"held-out accuracy {facts['held_out_accuracy']:.3f} on {facts['held_out_headlines']} headlines; "
        f"{out} holds the serving model"
    )
    return Conversion(out, True, message, reports, next=f"{interpreter()} web_service.py")


def demo_fingerprint(weights: Path, options: ConversionOptions) -> str:
    """Return a hash of the weights, headlines, options, the demo's source files and Paddle's version."""
    settings = {"paddle": paddle_version(), "tolerance": options.tolerance, "lengths": options.lengths}
    return hash_sources([weights, HEADLINES_FILE, *_SOURCES, *options.sample], settings)


def _train_classifier(weights: Path, options: ConversionOptions) -> None:
    from convert.demo.bert_classifier import save_weights
    from convert.demo.training import train

    save_weights(train(split_headlines(read_headlines()), vocabulary(), options.steps), weights)


def _convert_classifier(
    out: Path, weights: Path, options: ConversionOptions
) -> tuple[dict[str, Any], tuple[ParityReport, ...]]:
    from convert.demo.bert_classifier import load_model
    from convert.demo.training import class_ids, demo_tokenizer, encode, measure_accuracy, pad

    split, tokens = split_headlines(read_headlines()), vocabulary()
    model = load_model(weights, tokens)
    rows = encode(demo_tokenizer(tokens), split.held_out)
    accuracy = measure_accuracy(model, rows, class_ids(split.held_out))
    if accuracy < ACCURACY_NEEDED:
        raise ConversionError(
            f"the held-out accuracy is {accuracy:.3f}, below {ACCURACY_NEEDED}; "
            "restore the headlines, the weights and the demo's sources from the repository."
        )
    padded = [pad([row]) for row in rows]
    headlines = [pad(rows[start : start + size]) for start, size in enumerate(_BATCH_SIZES, start=10)]
    reports = convert_trained(model, out, labels=LABELS, batches=headlines, rows=padded, options=options)
    store_texts(out, [headline.text for headline in split.held_out])
    facts = {"held_out_accuracy": accuracy, **_counts(split)}
    (out / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts, reports


def _counts(split: Split) -> dict[str, int]:
    lengths = np.array([len(headline.text) for headline in split.held_out])
    return {
        "train_headlines": len(split.train),
        "held_out_headlines": len(split.held_out),
        "median_characters": int(np.median(lengths)),
    }
