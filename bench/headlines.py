"""Sends headlines in TNEWS's format through the service and compares with the predictor called directly.

A line is {"label_desc": "news_story", "sentence": "..."}; other keys are ignored.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from bench.bare_predictor import BarePredictor
from bench.instrumented_service import ROOT
from bench.load import CannotMeasure
from bench.running import DEMO_MODEL, default_config, running_service
from client.errors import ClientError
from client.http_client import HttpClient
from pipeline.text_lines import read_lines

CONFIDENCE_TOLERANCE = 1e-4  # a batch's padding changes the order of sums
EXAMPLES = "example: python -m bench.headlines --file test.json"


class Answered(NamedTuple):
    """What one headline got: a class and its probability."""

    label: str
    confidence: float


class Headline(NamedTuple):
    label: str
    text: str


def read_file(path: Path) -> list[Headline]:
    """Raises CannotMeasure, naming the line that is wrong."""
    headlines = []
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise CannotMeasure(f"{path} can't be read: {exc}") from exc
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            headlines.append(Headline(row["label_desc"].removeprefix("news_"), row["sentence"]))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise CannotMeasure(f"{path}:{number} has no label_desc and sentence: {exc!r}") from exc
    return headlines


def ask_service(headlines: Sequence[Headline], connections: int) -> list[Answered | ClientError]:
    """One request each, `connections` at a time, no retries."""

    def ask(headline: Headline) -> Answered | ClientError:
        try:
            outputs = client.predict(headline.text).outputs
        except ClientError as error:
            return error
        return Answered(str(outputs["label"][0]), float(outputs["confidence"][0]))

    with (
        running_service(ROOT / "web_service.py", default_config()) as service,
        HttpClient(service.url, retries=0, timeout_s=60) as client,
        ThreadPoolExecutor(connections) as pool,
    ):
        return list(track(pool.map(ask, headlines), "service", total=len(headlines), transient=True))


def ask_predictor(headlines: Sequence[Headline]) -> list[Answered]:
    """One text at a time, in this process."""
    predictor = BarePredictor(DEMO_MODEL, ROOT / "config.yml")
    answers = []
    for headline in track(headlines, "predictor", transient=True):
        (logits,) = predictor.logits([headline.text]).astype(np.float64)
        scores = np.exp(logits - logits.max())
        answers.append(Answered(predictor.labels[int(scores.argmax())], float(scores.max() / scores.sum())))
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.headlines", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--file", type=Path, required=True, help="headlines, a JSON object a line")
    parser.add_argument("--connections", type=int, default=20, help="default: %(default)s")
    options = parser.parse_args()
    console = Console(markup=False)
    try:
        headlines = read_file(options.file)
        served = ask_service(headlines, options.connections)
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red")
        return 1
    return report(console, headlines, served, ask_predictor(headlines))


def report(
    console: Console,
    headlines: Sequence[Headline],
    served: Sequence[Answered | ClientError],
    direct: Sequence[Answered],
) -> int:
    """Print the counts; exit code 1 when one was not answered or differs from the predictor."""
    answered = [
        (h, s, d) for h, s, d in zip(headlines, served, direct, strict=True) if not isinstance(s, ClientError)
    ]
    for headline, error in zip(headlines, served, strict=True):
        if isinstance(error, ClientError):
            console.print(f"not answered: {headline.text}: {error}", style="red")
    differing = [(h, s, d) for h, s, d in answered if not _agree(s, d)]
    for headline, of_service, of_predictor in differing[:10]:
        console.print(f"differs: {headline.text}: {of_service} {of_predictor}", style="red")
    worst = max((abs(s.confidence - d.confidence) for _, s, d in answered), default=0.0)
    right = sum(s.label == h.label for h, s, _ in answered)
    console.print(f"{len(answered)} of {len(headlines)} answered")
    console.print(
        f"{len(answered) - len(differing)} agree with the predictor; "
        f"confidences differ by at most {worst:.1e}"
    )
    console.print(f"accuracy {right / max(1, len(answered)):.3f}")
    return 1 if differing or len(answered) < len(headlines) else 0


def _agree(served: Answered, direct: Answered) -> bool:
    close = abs(served.confidence - direct.confidence) <= CONFIDENCE_TOLERANCE
    return close and served.label == direct.label


if __name__ == "__main__":
    raise SystemExit(main())
