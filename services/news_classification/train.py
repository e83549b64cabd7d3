"""Trains a classifier of headlines beside a linear model, and measures both: minutes on two cores.

The data are as those of TNEWS: train.json and test.json in a folder, on each line an object with `sentence`
and `label_desc`. The test file is read once, when the models are trained; --held-out measures on a fifth of
the training file in its place, and trains on the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn
from rich.console import Console

from convert.cli import ShownSteps
from convert.demo.bert_classifier import load_model
from convert.demo.convert_demo import WEIGHTS_FILE
from convert.demo.fitting import fit, seed_training
from convert.demo.headlines import LABELS, Headline, read_headlines, vocabulary
from convert.demo.trained_layer import write_trained
from convert.demo.training import (
    NgramTeacher,
    Recipe,
    batches,
    class_ids,
    demo_tokenizer,
    encode,
    pad,
    share_unknown,
)
from convert.programs.program_feeds import Array
from convert.steps.progress import Steps
from pipeline.errors import ServingError
from pipeline.offline.rows import RowFile

HERE = Path(__file__).resolve().parent
TEXT, LABEL, PREFIX = "sentence", "label_desc", "news_"
FACTS_FILE = "accuracy.json"
EPOCHS = 8
HELD_OUT_ONE_IN = 5
_AT_ONCE = 256  # headlines that are measured together


def read_rows(path: Path) -> list[Headline]:
    """The headlines of a file. Raises ServingError that names the line."""
    headlines = []
    for row in RowFile(path):
        text, label = (row.columns.get(name) for name in (TEXT, LABEL))
        label = str(label).removeprefix(PREFIX)
        if row.fault or not isinstance(text, str) or not text.strip() or label not in LABELS:
            wrong = row.fault or f"needs {TEXT!r}, a text, and {LABEL!r}, one of {PREFIX}{', '.join(LABELS)}"
            raise ServingError(f"{path}, {row.where}: {wrong}")
        headlines.append(Headline(label, text))
    return headlines


def train(headlines: Sequence[Headline], epochs: int, steps: Steps) -> tuple[Any, NgramTeacher]:
    """The classifier, and the linear model that teaches it."""
    recipe = Recipe(epochs=epochs)
    seed_training(recipe.seed)
    rows, classes = encode(demo_tokenizer(vocabulary()), headlines), class_ids(headlines)
    steps.step("Fitting the linear model")
    linear = NgramTeacher(rows, classes, len(LABELS))
    model = load_model(WEIGHTS_FILE, vocabulary())
    total = epochs * (len(rows) // recipe.batch)
    steps.step(f"Training {epochs} epochs", total)
    rng = np.random.default_rng(recipe.seed)
    made = chain.from_iterable(batches(rows, classes, linear, recipe, rng) for _ in range(epochs))
    loss = partial(nn.functional.cross_entropy, soft_label=True)
    fit(model, made, loss, total, recipe.schedule, steps)
    share_unknown(model, rows)
    # How often a file has a topic says nothing of the headlines to come: each is held to be as likely.
    bias = model.classifier.bias
    bias.set_value(bias.numpy() - np.log(shares(headlines)))
    return model, linear


def shares(headlines: Sequence[Headline]) -> Array:
    """Of each topic among them; float32 [classes]."""
    counts = np.bincount(class_ids(headlines), minlength=len(LABELS)).clip(min=1)
    return np.asarray(counts / counts.sum(), np.float32)


def accuracy(answers: Array, headlines: Sequence[Headline]) -> float:
    return float((answers.argmax(axis=1) == class_ids(headlines)).mean())


def answer_rows(model: Any, rows: Sequence[Array]) -> Array:
    with paddle.no_grad():
        parts = [rows[at : at + _AT_ONCE] for at in range(0, len(rows), _AT_ONCE)]
        return np.concatenate([model(*map(paddle.to_tensor, pad(part).values())).numpy() for part in parts])


def run(options: argparse.Namespace, steps: Steps) -> dict[str, float]:
    """Train, measure, write the serving model; returns what was measured."""
    own, demo = read_rows(options.data / "train.json"), list(read_headlines())
    kept = [one for at, one in enumerate(own) if at % HELD_OUT_ONE_IN] if options.held_out else own
    model, linear = train([*kept, *demo], options.epochs, steps)
    tokenizer = demo_tokenizer(vocabulary())
    steps.step("Fitting a linear model on the file alone")
    alone = NgramTeacher(encode(tokenizer, kept), class_ids(kept), len(LABELS))
    tests = own[::HELD_OUT_ONE_IN] if options.held_out else read_rows(options.data / "test.json")
    rows = encode(tokenizer, tests)
    facts = {
        "linear": accuracy(alone.probabilities(rows), tests),
        "linear_with_demo": accuracy(linear.probabilities(rows), tests),
        "linear_with_demo_even": accuracy(linear.probabilities(rows) / shares([*kept, *demo]), tests),
        "accuracy": accuracy(answer_rows(model, rows), tests),
    }
    if not options.held_out:
        sample = [pad([row]) for row in encode(tokenizer, kept[:512])]
        write_trained(
            model, options.out, "services/news_classification", labels=LABELS, rows=sample, steps=steps
        )
        (options.out / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    return facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python3 train.py --data tnews")
    parser.add_argument("--data", type=Path, required=True, help="folder with train.json and test.json")
    parser.add_argument("--out", type=Path, default=HERE / "model", help="the serving model (%(default)s)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="(%(default)s)")
    parser.add_argument("--held-out", action="store_true", help="write nothing, and leave test.json unread")
    options = parser.parse_args()
    console = Console(highlight=False)
    try:
        with ShownSteps(console) as steps:
            facts = run(options, steps)
    except ServingError as exc:
        console.print(f"error: {exc}", style="red")
        return 2
    for name, value in facts.items():
        console.print(f"{name}: {value:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
