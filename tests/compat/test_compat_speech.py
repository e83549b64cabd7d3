"""The names of WeNet's Triton models: `swig_decoders` and `kaldifeat`."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import kaldifeat
import numpy as np
import pytest
import swig_decoders
from swig_decoders import HotWordsScorer, PathTrie, Scorer, TrieVector

import paddlenlp_shims.finder  # noqa: F401  # finds the two packages

BLANK = 0
ALL = 1.0e9  # a cutoff that keeps every token
VOCABULARY = ["<blank>", "a", "b", "c"]
ARPA = """
\\data\\
ngram 1=5
ngram 2=2

\\1-grams:
-1.0 <s> -0.5
-0.7 a -0.3
-0.9 b -0.2
-0.8 c
-1.5 </s>

\\2-grams:
-0.1 <s> b
-0.2 a c

\\end\\
"""


def log_probabilities(frames: int, tokens: int, seed: int) -> np.ndarray[Any, Any]:
    logits = np.random.default_rng(seed).normal(size=(frames, tokens)) * 2
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def best_tokens(log_probs: np.ndarray[Any, Any]) -> tuple[list[list[float]], list[list[int]]]:
    """The arguments of the search: log probabilities of each frame, greatest first, and their tokens."""
    order = np.argsort(-log_probs, axis=1)
    return np.take_along_axis(log_probs, order, axis=1).tolist(), order.tolist()


def search(log_probs: np.ndarray[Any, Any], beam_size: int = 1000, **options: Any) -> list[Any]:
    scores, ids = best_tokens(log_probs)
    return swig_decoders.ctc_beam_search_decoder(
        scores, ids, PathTrie(), True, beam_size, **{"blank_id": BLANK, "cutoff_prob": ALL} | options
    )


def collapse(path: tuple[int, ...]) -> tuple[int, ...]:
    """The text of a path of CTC: repeated tokens count once, blanks not at all."""
    return tuple(token for token, _ in itertools.groupby(path) if token != BLANK)


def enumerate_paths(log_probs: np.ndarray[Any, Any]) -> dict[tuple[int, ...], float]:
    """The probability of every text, summed over all of its paths."""
    frames, tokens = log_probs.shape
    sums: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(tokens), repeat=frames):
        sums[collapse(path)] += math.exp(sum(log_probs[frame, token] for frame, token in enumerate(path)))
    return sums


@pytest.mark.parametrize(("frames", "tokens", "seed"), [(1, 3, 1), (4, 3, 2), (5, 4, 3), (7, 3, 4)])
def test_a_beam_that_keeps_every_prefix_sums_all_paths(frames: int, tokens: int, seed: int) -> None:
    log_probs = log_probabilities(frames, tokens, seed)
    expected = enumerate_paths(log_probs)
    hypotheses = search(log_probs)
    assert {ids: math.exp(score) for score, ids in hypotheses} == pytest.approx(expected, rel=1e-9)
    assert [score for score, _ in hypotheses] == sorted((score for score, _ in hypotheses), reverse=True)


def test_chunks_of_a_stream_give_the_hypotheses_of_the_utterance() -> None:
    log_probs = log_probabilities(12, 4, 5)
    trie = PathTrie()
    for start in range(0, 12, 5):
        scores, ids = best_tokens(log_probs[start : start + 5])
        chunked = swig_decoders.ctc_beam_search_decoder(
            scores, ids, trie, start == 0, 6, blank_id=BLANK, cutoff_prob=ALL
        )
    assert chunked == search(log_probs, beam_size=6)
    assert len(chunked) == 6


def test_a_batch_has_the_hypotheses_of_each_utterance() -> None:
    utterances = [log_probabilities(frames, 4, frames) for frames in (3, 9, 6)]
    tries = TrieVector()
    for _ in utterances:
        tries.append(PathTrie())
    scores, ids = zip(*map(best_tokens, utterances), strict=True)
    batch = swig_decoders.ctc_beam_search_decoder_batch(
        scores, ids, tries, [True] * 3, 4, 2, blank_id=BLANK, space_id=-2, cutoff_prob=0.9999,
        ext_scorer=None, hotwords_scorer=None,
    )  # fmt: skip
    assert batch == [search(utterance, beam_size=4, cutoff_prob=0.9999) for utterance in utterances]
    texts = swig_decoders.map_batch([hypotheses[0][1] for hypotheses in batch], VOCABULARY, 2)
    assert texts == ["".join(VOCABULARY[token] for token in hypotheses[0][1]) for hypotheses in batch]


def test_pruned_prefixes_leave_the_trie() -> None:
    scores, ids = best_tokens(log_probabilities(400, 4, 6))
    trie = PathTrie()
    swig_decoders.ctc_beam_search_decoder(scores, ids, trie, True, 3, cutoff_prob=ALL)
    root = trie.beam[0]
    while root.parent is not None:
        root = root.parent
    waiting, count = [root], 0
    while waiting:
        prefix = waiting.pop()
        assert prefix.children or prefix.in_beam
        waiting += prefix.children.values()
        count += 1
    assert count < 3 * 400


def test_a_hotword_adds_its_weight_where_it_ends() -> None:
    log_probs = log_probabilities(5, 4, 7)
    expected = enumerate_paths(log_probs)
    hotwords = HotWordsScorer({"ab": 1.5, "cab": -2.0, "c": 50.0}, VOCABULARY, window_length=4)
    for score, ids in search(log_probs, hotwords_scorer=hotwords):
        text = "".join(VOCABULARY[token] for token in ids)
        weight = 1.5 * text.count("ab") - 3.5 * text.count("cab")
        assert score == pytest.approx(math.log(expected[ids]) + weight, abs=1e-9)


def test_a_hotword_of_words_adds_its_weight_at_spaces() -> None:
    log_probs, spaced = log_probabilities(3, 4, 11), ["<blank>", "a", "b", " "]
    hotwords = HotWordsScorer({"ab": 3.0}, spaced, SPACE_ID=3, is_character_based=False)
    plain = {ids: score for score, ids in search(log_probs)}
    for score, ids in search(log_probs, hotwords_scorer=hotwords, space_id=3):
        assert score == pytest.approx(plain[ids] + (3.0 if ids == (1, 2, 3) else 0.0))


def test_a_language_model_scores_each_character_after_its_history(tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_text(ARPA, "utf-8")
    scorer = Scorer(2.0, 1.0, str(tmp_path / "lm.arpa"), VOCABULARY)
    assert scorer.is_character_based() and scorer.get_max_order() == 2
    # By hand: p(b | <s>) is there, p(a | b) backs off, p(c | a) is there.
    expected = [-0.1, -0.2 + -0.7, -0.2]
    histories = [["<s>", "b"], ["b", "a"], ["a", "c"]]
    assert [scorer.get_log_cond_prob(words) for words in histories] == pytest.approx(
        [value * math.log(10) for value in expected]
    )
    log_probs = log_probabilities(4, 4, 8)
    sums = enumerate_paths(log_probs)
    score = {ids: score for score, ids in search(log_probs, ext_scorer=scorer)}[(2, 1, 3)]
    assert score == pytest.approx(math.log(sums[(2, 1, 3)]) + 2.0 * math.log(10) * sum(expected) + 3 * 1.0)
    assert scorer.get_log_cond_prob(["a", "x"]) == -1000.0


def test_a_language_model_of_words_allows_only_its_words(tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_text(ARPA.replace(" b", " ab").replace("a c", "a ab"), "utf-8")
    scorer = Scorer(1.0, 0.0, str(tmp_path / "lm.arpa"), ["<blank>", "a", "b", " "])
    hypotheses = search(log_probabilities(5, 4, 9), ext_scorer=scorer, space_id=3)
    texts = {"".join(["", "a", "b", " "][token] for token in ids) for _, ids in hypotheses}
    assert all(re.fullmatch("((a|ab) )*(a|ab|)", text) for text in texts)
    assert {"ab", "a a"} <= texts


def test_a_binary_language_model_needs_kenlm(tmp_path: Path) -> None:
    (tmp_path / "lm.bin").write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0")
    with pytest.raises((ImportError, ValueError), match=r"lm\.bin"):
        Scorer(2.0, 1.0, str(tmp_path / "lm.bin"), VOCABULARY)


@pytest.mark.parametrize(
    ("scores", "ids", "message"),
    [
        ([[math.nan, -1.0]], [[0, 1]], "frame 0: expected log probabilities"),
        ([[3.0, -1.0]], [[0, 1]], "frame 0: expected log probabilities"),
        ([[-0.1, -1.0]], [[0]], "frame 0 has 2 log probabilities, but 1 ids"),
        ([[-0.1]], [], "1 frames of log probabilities, but 0 of ids"),
    ],
)
def test_frames_without_probabilities_are_named(scores: Any, ids: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        swig_decoders.ctc_beam_search_decoder(scores, ids, PathTrie(), True, 2)


def test_greedy_texts_drop_repeated_tokens_and_blanks() -> None:
    assert swig_decoders.map_sent([1, 1, 0, 1, 2, 2], VOCABULARY, True, BLANK) == "aab"
    with pytest.raises(ValueError, match="token id 9"):
        swig_decoders.map_sent([9], VOCABULARY)


def reference_features(wave: np.ndarray[Any, Any], bins: int) -> np.ndarray[Any, Any]:
    """Kaldi's filter bank features as its documentation defines them, at 16 kHz, without dither.

    Each frame of 25 ms: mean removed, pre-emphasis 0.97, Povey window, power spectrum of 512 samples. The
    triangular filters are equally spaced from 20 Hz to 8 kHz on the scale 1127 ln(1 + f / 700).
    """
    starts = range(0, len(wave) - 400 + 1, 160)
    frames = np.stack([wave[start : start + 400] for start in starts]).astype(np.float64)
    frames -= frames.mean(axis=1, keepdims=True)
    frames -= 0.97 * np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
    power = np.abs(np.fft.rfft(frames * window, 512)) ** 2

    def mel(hertz: Any) -> Any:
        return 1127 * np.log(1 + np.asarray(hertz) / 700)

    edges = np.linspace(mel(20), mel(8000), bins + 2)
    mels = mel(np.arange(257) * 16000 / 512)[:, None]
    rising = (mels - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - mels) / (edges[2:] - edges[1:-1])
    filters = np.maximum(0, np.minimum(rising, falling))
    filters[256] = 0  # Kaldi leaves out the highest frequency
    return np.log(np.maximum(power @ filters, 1.1920929e-07))


def fbank(bins: int) -> kaldifeat.Fbank:
    options = kaldifeat.FbankOptions()
    options.frame_opts.dither = 0
    options.mel_opts.num_bins = bins
    options.device = "cpu"
    return kaldifeat.Fbank(options)


def test_features_are_kaldis() -> None:
    random = np.random.default_rng(10)
    waves = [(random.normal(size=length) * 3000).astype(np.float32) for length in (400, 4000, 5000)]
    extract = fbank(80)
    for wave, features in zip(waves, extract(waves), strict=True):
        np.testing.assert_allclose(features, reference_features(wave, 80), atol=2e-3)
        assert len(features) == kaldifeat.num_frames(len(wave), extract.opts.frame_opts)
    assert extract(waves[0][:399]).shape == (0, 80)


def test_numbers_of_frames_are_those_of_the_features() -> None:
    extract = fbank(23)
    extract.opts.frame_opts.snip_edges = False
    for length in (399, 480, 1234, 16000):
        assert len(extract(np.ones(length))) == kaldifeat.num_frames(length, extract.opts.frame_opts)


def test_a_package_that_is_installed_comes_first(tmp_path: Path) -> None:
    (tmp_path / "swig_decoders.py").write_text("WHERE = 'installed'\n", "utf-8")
    code = (
        "import sys, paddlenlp_shims.finder, _kaldifeat; sys.path.insert(0, '.'); import swig_decoders; "
        "print(swig_decoders.WHERE, callable(_kaldifeat.num_frames))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "installed True\n", done.stderr
