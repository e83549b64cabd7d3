"""The demo's headlines, their split and its vocabulary."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from convert.demo.headlines import (
    LABELS,
    NEAR_DUPLICATE,
    SPECIALS,
    Split,
    bigrams,
    hanzi,
    read_headlines,
    split_headlines,
    vocabulary,
)
from convert.demo.training import NgramTeacher

HELD_OUT_SHA256 = "8fdeb78b996dd55014db91b156d37dcfcb7ee12343aa06863c9763025da6fbb5"
TRAIN_SHA256 = "1d913d82f5149858fd87f18553a7278707d8423c978a0269333520f653763854"


@pytest.fixture(scope="module")
def split() -> Split:
    return split_headlines(read_headlines())


def test_there_are_at_least_1500_different_headlines_in_all_15_classes() -> None:
    headlines = read_headlines()
    assert len(headlines) >= 1500
    assert len({headline.text for headline in headlines}) == len(headlines)
    counts = Counter(headline.label for headline in headlines)
    assert counts.keys() == set(LABELS)
    assert len(LABELS) == 15
    assert min(counts.values()) >= 100


def test_the_split_is_the_one_fixed_before_training(split: Split) -> None:
    held_out = "\n".join(sorted(headline.text for headline in split.held_out))
    train = "\n".join(sorted(headline.text for headline in split.train))
    assert hashlib.sha256(held_out.encode()).hexdigest() == HELD_OUT_SHA256
    assert hashlib.sha256(train.encode()).hexdigest() == TRAIN_SHA256


def test_every_class_is_held_out_in_part(split: Split) -> None:
    assert 0.15 <= len(split.held_out) / (len(split.train) + len(split.held_out)) <= 0.2
    counts = Counter(headline.label for headline in split.held_out)
    assert all(counts[label] >= 10 for label in LABELS)


def test_no_held_out_headline_resembles_one_of_the_train_headlines(split: Split) -> None:
    train = [bigrams(headline.text) for headline in split.train]
    for headline in split.held_out:
        own = bigrams(headline.text)
        assert max(len(own & other) / len(own | other) for other in train) <= NEAR_DUPLICATE, headline.text


def test_a_train_headline_that_nearly_repeats_a_held_out_one_is_left_out(split: Split) -> None:
    original = next(h for h in split.held_out if len(h.text) > 14)
    copies = (original._replace(text=f"{original.text}{ending}") for ending in "！？。…；，、：")
    again = split_headlines([original, *copies])
    assert again.train == ()
    assert original in again.held_out


def test_a_headline_ends_with_a_line_feed_alone(tmp_path: Path) -> None:
    (tmp_path / "headlines.tsv").write_text("tech\t新芯片\u2028量产\r\nsports\t国足\u0085取胜\n", "utf-8")
    texts = [headline.text for headline in read_headlines(tmp_path / "headlines.tsv")]
    assert texts == ["新芯片\u2028量产", "国足\u0085取胜"]


def test_the_vocabulary_has_every_hanzi_of_gb2312_once() -> None:
    tokens = vocabulary()
    assert len(hanzi()) == len(set(hanzi())) == 6763
    assert hanzi()[0] == "啊"
    assert set(hanzi()) <= set(tokens)
    assert len(set(tokens)) == len(tokens)
    assert tokens[: len(SPECIALS)] == SPECIALS


def test_no_character_of_the_headlines_is_unknown_to_the_vocabulary() -> None:
    characters = {char.lower() for headline in read_headlines() for char in headline.text} - {" "}
    assert sorted(characters - set(vocabulary())) == []


def test_the_teacher_answers_what_it_was_taught_and_only_probabilities() -> None:
    rows = [np.array([2, 10 + label, 30, 10 + label, 3]) for label in (0, 1, 2) for _ in range(4)]
    classes = np.repeat([0, 1, 2], 4)
    answers = NgramTeacher(rows, classes, 3).probabilities([*rows, np.array([2, 99, 3])])
    assert answers[:-1].argmax(axis=1).tolist() == classes.tolist()
    np.testing.assert_allclose(answers.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(answers[-1], 1 / 3, atol=1e-6)
