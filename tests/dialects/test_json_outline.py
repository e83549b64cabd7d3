"""The outline of a large JSON body: what is cut can be restored, whatever the pieces of the scan are."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pipeline.config.config_file import Limits
from pipeline.dialects import json_outline
from pipeline.dialects.json_outline import make_outline
from pipeline.errors import TooLarge

LIMITS = Limits()
TEXTS = ["a", "\\", '"', "[{", '\\"]', "\u00e9\u2028", "x" * 300, ""]


def value(random: random.Random, depth: int = 0) -> Any:
    kind = random.random()
    if depth > 6 or kind < 0.2:
        return random.choice([1, 1.5, None, True, *TEXTS])
    count = range(random.randint(0, 6))
    if kind < 0.6:
        return [value(random, depth + 1) for _ in count]
    return {random.choice('abc"\\[') + str(number): value(random, depth + 1) for number in count}


def restored(text: bytes) -> bytes:
    """A text as it is after each of its arrays was cut and restored."""
    outline = make_outline(text, LIMITS, 1 << 20)
    json.loads(outline.text)
    marks = (json_outline._STAND_IN % number for number in range(1 << 20))
    whole = outline.text
    for mark in marks:
        if mark not in whole:
            return whole
        whole = whole.replace(mark, bytes(outline.restore(mark)))
    raise AssertionError("more arrays than there can be")


@pytest.mark.parametrize("piece_bytes", [2, 3, 7, 64, 1 << 20])
def test_what_is_cut_can_be_restored(monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(json_outline, "_PIECE_BYTES", piece_bytes)
    seeded = random.Random(piece_bytes)
    for _ in range(50):
        monkeypatch.setattr(json_outline, "_SHORT_BYTES", seeded.choice([0, 5, 40, 256]))
        text = json.dumps(value(seeded), ensure_ascii=seeded.random() < 0.5).encode()
        assert restored(text) == text


def test_the_data_of_tensors_is_cut_and_nothing_else() -> None:
    tensor = {"name": "x", "shape": [1, 2], "data": list(range(1000))}
    document = {"inputs": [tensor, {"data": [[1, 2]] * 200}], "z": {"y": [1] * 500}}
    outline = json.loads(make_outline(json.dumps(document).encode(), LIMITS).text)
    assert [len(one["data"]) for one in outline["inputs"]] == [1, 1]
    assert outline["inputs"][0]["shape"] == [1, 2] and len(outline["z"]["y"]) == 500


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100,
        b'{"a":' * 40,
        b'{"a":[' + b"1," * 300_000,
        b'{"a":{' + b'"b":1,' * 150_000,
        b'{"a":[{"data":[1],"b":{' + b'"c":1,' * 150_000,
    ],
)
def test_more_than_the_limits_is_refused(text: bytes) -> None:
    with pytest.raises(TooLarge, match=r"limits\.(json_depth|tensors)"):
        make_outline(text, LIMITS)
