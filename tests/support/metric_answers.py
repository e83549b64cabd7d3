"""Collects the results of PaddleNLP's metrics on small arrays.

The fixture tests/fixtures/paddlenlp_metrics.json has the results of PaddleNLP 2.8.1. In an environment with
that version and with Paddle, this command records it again:

    python -m tests.support.metric_answers tests/fixtures/paddlenlp_metrics.json
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LABELS = ("O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "I-LOC")
TEXTS = ("the cat the cat on the mat", "the cat is on the mat", "there is a cat on the mat", "a dog")
CONTEXT = "The quick brown fox jumps over a lazy dog"
Make = Callable[[Any], Any]


def answers(metrics: Any, squad: Any, make: Make) -> dict[str, Any]:
    """Return the results of the metrics of two modules. make: an array as `compute` takes it."""
    warnings.simplefilter("ignore")  # of divisions by zero, which are among the cases
    collected = {
        **_classification(metrics, make),
        **_spans(metrics, make),
        **_texts(metrics, make),
        **_reading(squad),
    }
    return {name: _plain(value) for name, value in collected.items()}


def _scores(*shape: int, step: int = 37) -> Any:
    """Different numbers between 0 and 1 in a fixed order."""
    return (np.arange(np.prod(shape)) * step % 101 / 101).astype("float32").reshape(shape)


def _numbers(*shape: int, step: int, below: int) -> Any:
    return (np.arange(np.prod(shape)) * step % 101 % below).reshape(shape)


def _classification(metrics: Any, make: Make) -> dict[str, Any]:
    binary, labels = _scores(12, 2), _numbers(12, 1, step=53, below=2)
    binary[3] = 0.5
    results = {}
    for metric in (metrics.AccuracyAndF1(), metrics.Mcc()):
        metric.update(metric.compute(make(binary), make(labels)))
        results[str(metric.name())] = metric.accumulate()
    correlation = metrics.PearsonAndSpearman()
    correlation.update((make(_scores(9, 1)), make(_scores(9, 1, step=61))))
    results["correlation"] = correlation.accumulate()
    several = metrics.MultiLabelsMetric(num_labels=4)
    several.update(several.compute(make(_scores(10, 4)), make(_numbers(10, 1, step=29, below=3))))
    for average in (None, "micro", "macro", "weighted", "binary"):
        results[f"several labels, {average}"] = several.accumulate(average)
    perplexity = metrics.Perplexity()
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    entropy, words = perplexity.compute(
        make(_scores(2, 5, 7)), make(_numbers(2, 5, step=17, below=7)), make(mask)
    )
    perplexity.update(_array(entropy), _array(words))
    results["perplexity"] = perplexity.accumulate()
    return results


def _spans(metrics: Any, make: Make) -> dict[str, Any]:
    results = {}
    for suffix in (False, True):
        names = ["-".join(reversed(name.split("-"))) for name in LABELS] if suffix else LABELS
        chunks = metrics.ChunkEvaluator(names, suffix=suffix)
        labels = _numbers(4, 12, step=23, below=7)
        inferred = np.where(_scores(4, 12) < 0.7, labels, labels + 1)  # 7 is no label
        counts = chunks.compute(make(np.array([12, 7, 3, 1])), make(inferred), make(labels))
        numbers = [int(_array(count)[0]) for count in counts]
        chunks.update(*numbers)
        results[f"chunks, suffix {suffix}"] = (numbers, chunks.accumulate())
    spans = metrics.SpanEvaluator()
    gold = [_numbers(3, 15, step=step, below=2) for step in (31, 43)]
    spans.update(*spans.compute(make(_scores(3, 15)), make(_scores(3, 15, step=59)), *map(make, gold)))
    results["spans"] = spans.accumulate()
    for metric, inputs in ((metrics.DetectionF1(), ()), (metrics.CorrectionF1(), (1,))):
        labels = _numbers(6, 8, step=47, below=5) // 4
        right = _numbers(6, 8, step=19, below=3)
        columns = [np.eye(2)[labels], labels] + [
            column for _ in inputs for column in (np.eye(3)[right], right)
        ]
        columns[0][0] = columns[0][0][:, ::-1]
        metric.update(*columns, np.array([7, 6, 5, 4, 3, 2]))
        results[str(metric.name())] = metric.accumulate()
    return results


def _texts(metrics: Any, make: Make) -> dict[str, Any]:
    candidate, *references = (text.split() for text in TEXTS)
    results = {}
    vocab = dict(enumerate("abcdefg"))
    for kind in (metrics.BLEU, metrics.RougeL):
        metric, of_scores = kind(), kind(vocab=vocab)
        metric.add_inst(candidate, references)
        mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
        of_scores.update(_scores(2, 4, 7), _numbers(2, 4, 1, step=17, below=7), mask)
        results[str(metric.name())] = (metric.score(), of_scores.accumulate())
    for rouge in (metrics.Rouge1(), metrics.Rouge2()):
        results[str(rouge.name())] = rouge.score([candidate, references[1]], references[:2])
    distinct = metrics.Distinct()
    distinct.add_inst(candidate)
    results["distinct"] = distinct.score()
    return results


class _Examples(list[Any]):
    """Rows with columns, as of the package `datasets`."""

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def _reading(squad: Any) -> dict[str, Any]:
    words, place = [], 0
    for word in CONTEXT.split():
        words.append((place, place + len(word)))
        place += len(word) + 1
    rights = (["brown fox", "quick"], [], ["lazy dog"])
    examples = _Examples(
        {"id": str(n), "context": CONTEXT, "answers": {"text": right, "answer_start": [0] * len(right)}}
        for n, right in enumerate(rights)
    )
    features = [
        {"example_id": str(n // 2), "offset_mapping": [(0, 0), None, *words]}
        for n in range(2 * len(examples))
    ]
    features[3]["token_is_max_context"] = {"4": True, "5": True}
    scores = [4 * _scores(6, 11, step=step) for step in (41, 67)]
    results = {}
    for negative in (False, True):
        best, n_best, differences = squad.compute_prediction(examples, features, scores, negative, 4, 5, 0.2)
        evaluated = squad.squad_evaluate(examples, best, differences, na_prob_thresh=0.1)
        results[f"reading, {negative}"] = (best, n_best["1"], differences, evaluated)
    texts = ("The  Cat, a dog!", "《国足》，an apple")
    results["normalized"] = [squad.normalize_answer(text) for text in texts]
    results["F1 of characters"] = squad.compute_f1("国足客场", "国足主场", is_whitespace_splited=False)
    return results


def _array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(entry) for entry in value]
    if isinstance(value, (np.generic, float)):
        return round(float(value), 6)
    return value


def record(path: Path) -> None:
    """Write the results of the PaddleNLP of this environment."""
    modules = [importlib.import_module(f"paddlenlp.metrics{name}") for name in ("", ".squad")]
    results = answers(*modules, importlib.import_module("paddle").to_tensor)
    lines = (
        f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in results.items()
    )
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
