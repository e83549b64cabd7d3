"""The answer key: texts, and what the bare predictor says of each, one at a time and with no server around.

Run as `python -m tests.chaos.answer_key COUNT LONGEST SEED`: prints a row [text, label, confidence] for each,
as JSON. LONGEST: characters, at most 510. No two rows are alike, so that an answer that belongs to another
text is told from this one's.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from bench.load import CannotMeasure
from bench.running import DEMO_MODEL, ROOT
from convert.demo.headlines import read_headlines

TOLERANCE = 1e-4  # of a confidence; padding and batch mates move it by less than 1e-5
_APART = 4 * TOLERANCE
_CLEAR = 0.01  # the best class is ahead of the next by this much, so that rounding can't change the label
_SHORTEST = 4

Row = tuple[str, str, float]


def answer_key(count: int, longest: int, seed: int) -> list[Row]:
    """Rows of a process of its own: Paddle shall not be in ours. Raises CannotMeasure."""
    command = [sys.executable, "-m", "tests.chaos.answer_key", str(count), str(longest), str(seed)]
    env = os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMeasure(f"the bare predictor left with {done.returncode}: {done.stderr[-2000:]}")
    return [(text, label, confidence) for text, label, confidence in json.loads(done.stdout)]


def _texts(longest: int, seed: int) -> Iterator[str]:
    """Pieces of joined headlines, of every length up to `longest` characters."""
    chance = random.Random(seed)
    headlines = [headline.text for headline in read_headlines()]
    while True:
        length = chance.randint(_SHORTEST, longest)
        text = chance.choice(headlines)
        while len(text) < length:
            text += chance.choice(headlines)
        yield text[:length]


def _rows(count: int, longest: int, seed: int) -> list[Row]:
    from bench.bare_predictor import BarePredictor

    predictor = BarePredictor(DEMO_MODEL, ROOT / "config.yml")
    rows: list[Row] = []
    taken: set[tuple[str, int]] = set()
    for text in _texts(longest, seed):
        (logits,) = predictor.logits([text])
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
        second, best = np.sort(scores)[-2:]
        label, step = predictor.labels[int(scores.argmax())], int(best / _APART)
        if best - second < _CLEAR or not taken.isdisjoint((label, step + off) for off in (-1, 0, 1)):
            continue
        taken.add((label, step))
        rows.append((text, label, float(best)))
        if len(rows) == count:
            return rows
    raise AssertionError("unreachable: texts never end")


def main(arguments: list[str]) -> None:
    count, longest, seed = map(int, arguments)
    json.dump(_rows(count, longest, seed), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
