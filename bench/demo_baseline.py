"""Held-out accuracy of the demo model, compared with logistic regression on character 1-2-grams."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from convert.demo.headlines import Headline, read_headlines, split_headlines

MARGIN = 0.03


def baseline_accuracy(train: tuple[Headline, ...], held_out: tuple[Headline, ...]) -> float:
    """Fit sublinear TF-IDF and C=10 on `train`, return the accuracy on `held_out`."""
    features = TfidfVectorizer(analyzer="char", ngram_range=(1, 2), sublinear_tf=True)
    classifier = make_pipeline(features, LogisticRegression(C=10.0, max_iter=1000))
    classifier.fit([h.text for h in train], [h.label for h in train])
    return float(classifier.score([h.text for h in held_out], [h.label for h in held_out]))


def main() -> int:
    """Print both accuracies; exit code 1 when the demo is more than 0.03 below logistic regression."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: python -m bench.demo_baseline --model models/demo"
    )
    parser.add_argument("--model", type=Path, default=Path("models/demo"), help="what `convert demo` wrote")
    options = parser.parse_args()
    console = Console()
    split = split_headlines(read_headlines())
    baseline = baseline_accuracy(split.train, split.held_out)
    console.print(f"{len(split.train)} train and {len(split.held_out)} held-out headlines")
    console.print(f"logistic regression, characters 1-2-grams: {baseline:.3f}")
    report = options.model / "accuracy.json"
    if not report.is_file():
        console.print(f"{report} is not there; run `paddlewheel convert demo` first.")
        return 2
    demo = float(json.loads(report.read_text(encoding="utf-8"))["held_out_accuracy"])
    console.print(f"demo model: {demo:.3f} ({demo - baseline:+.3f})")
    return 0 if demo >= baseline - MARGIN else 1


if __name__ == "__main__":
    raise SystemExit(main())
