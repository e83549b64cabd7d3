"""CTC prefix beam search over the best tokens of each frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, inf, isnan

from .hotwords import HotWordsScorer
from .path_trie import ROOT, PathTrie, Prefix, add_logs
from .scorer import Scorer

Hypothesis = tuple[float, tuple[int, ...]]
"""Score and token ids."""

MAX_LOG_PROB = 0.1
"""Logarithms of probabilities are at most 0, but for rounding errors of float16."""


def ctc_beam_search_decoder_batch(
    batch_log_probs_seq: Sequence[Sequence[Sequence[float]]],
    batch_log_probs_idx: Sequence[Sequence[Sequence[int]]],
    batch_root_trie: Sequence[PathTrie],
    batch_start: Sequence[bool],
    beam_size: int,
    num_processes: int,
    blank_id: int = 0,
    space_id: int = -1,
    cutoff_prob: float = 0.999,
    ext_scorer: Scorer | None = None,
    hotwords_scorer: HotWordsScorer | None = None,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses for each utterance, or for its chunks received so far.

    The arguments with `batch_` have an entry for each utterance. num_processes is accepted but not used.
    Raises ValueError for unequal lengths, and for a frame without a probability.
    """
    lengths = [len(batch_log_probs_seq), len(batch_log_probs_idx), len(batch_root_trie), len(batch_start)]
    if len(set(lengths)) != 1:
        raise ValueError(f"log probabilities, ids, tries and starts have different lengths: {lengths}")
    utterances = zip(batch_log_probs_seq, batch_log_probs_idx, batch_root_trie, batch_start, strict=True)
    search = partial(
        ctc_beam_search_decoder,
        beam_size=beam_size,
        blank_id=blank_id,
        space_id=space_id,
        cutoff_prob=cutoff_prob,
        ext_scorer=ext_scorer,
        hotwords_scorer=hotwords_scorer,
    )
    return [search(*utterance) for utterance in utterances]


def ctc_beam_search_decoder(
    log_probs_seq: Sequence[Sequence[float]],
    log_probs_idx: Sequence[Sequence[int]],
    root: PathTrie,
    start: bool,
    beam_size: int,
    blank_id: int = 0,
    space_id: int = -1,
    cutoff_prob: float = 0.999,
    ext_scorer: Scorer | None = None,
    hotwords_scorer: HotWordsScorer | None = None,
) -> list[Hypothesis]:
    """Return at most `beam_size` hypotheses, best first.

    log_probs_seq, log_probs_idx: for each frame, the logarithms of the best probabilities, greatest first,
    and their token ids. root: a new PathTrie, or the PathTrie of the previous chunk with `start` false.
    cutoff_prob: in each frame, only the best tokens up to this sum of probabilities are considered. Raises
    ValueError.
    """
    if len(log_probs_seq) != len(log_probs_idx):
        raise ValueError(f"{len(log_probs_seq)} frames of log probabilities, but {len(log_probs_idx)} of ids")
    if beam_size < 1:
        raise ValueError(f"beam_size is {beam_size}; it must be at least 1")
    if not root.beam:
        if not start:
            raise ValueError("the PathTrie of a chunk that is not the first has no first chunk")
        root.beam = [_empty_prefix(ext_scorer)]
    search = BeamSearch(beam_size, blank_id, space_id, cutoff_prob, ext_scorer, hotwords_scorer)
    root.beam = search.search_frames(root.beam, log_probs_seq, log_probs_idx)
    return [(prefix.score, prefix.token_ids()) for prefix in root.beam]


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Options of a beam search."""

    beam_size: int
    blank_id: int
    space_id: int
    cutoff_prob: float
    language_model: Scorer | None
    hotwords: HotWordsScorer | None

    def search_frames(
        self, beam: list[Prefix], log_probs: Sequence[Sequence[float]], ids: Sequence[Sequence[int]]
    ) -> list[Prefix]:
        """Return the beam after these frames, best prefix first."""
        after_blank = False
        for number, (frame_log_probs, frame_ids) in enumerate(zip(log_probs, ids, strict=True)):
            _check_frame(number, frame_log_probs, frame_ids)
            # All but the first of successive frames that are surely blank change no prefix.
            is_blank = frame_ids[0] == self.blank_id and exp(frame_log_probs[0]) >= self.cutoff_prob
            if not (is_blank and after_blank):
                beam = self._search_frame(beam, frame_log_probs, frame_ids)
            after_blank = is_blank
        return beam

    def _search_frame(
        self, beam: list[Prefix], log_probs: Sequence[float], ids: Sequence[int]
    ) -> list[Prefix]:
        reached = list(beam)
        for log_prob, token in self._likely_tokens(log_probs, ids):
            for prefix in beam:
                if token == self.blank_id:
                    prefix.next_blank = add_logs(prefix.next_blank, log_prob + prefix.score)
                    continue
                arrival = log_prob + prefix.score
                if token == prefix.token:
                    prefix.next_token = add_logs(prefix.next_token, log_prob + prefix.token_end)
                    arrival = log_prob + prefix.blank
                child = self._find_child(prefix, token) if arrival > -inf else None
                if child is not None:
                    child.next_token = add_logs(child.next_token, arrival + child.bonus)
                    if not child.in_beam:
                        child.in_beam = True
                        reached.append(child)
        for prefix in reached:
            prefix.next_frame()
        reached.sort(key=lambda prefix: (-prefix.score, prefix.token))
        for prefix in reached[self.beam_size :]:
            prefix.leave_beam()
        return reached[: self.beam_size]

    def _likely_tokens(self, log_probs: Sequence[float], ids: Sequence[int]) -> Iterator[tuple[float, int]]:
        """Yield the best tokens of a frame until their probabilities exceed the cutoff.

        The first is always yielded.
        """
        total = 0.0
        for index, (log_prob, token) in enumerate(zip(log_probs, ids, strict=True)):
            total += exp(log_prob)
            if total > self.cutoff_prob and index:
                return
            yield log_prob, token

    def _find_child(self, prefix: Prefix, token: int) -> Prefix | None:
        """Return the prefix extended by a token, or None if the dictionary has no such word."""
        child = prefix.children.get(token)
        if child is not None:
            return child
        letters = prefix.word_letters
        if letters is not None and token not in letters:
            return None
        child = Prefix(token, prefix)
        child.word_letters = None if letters is None else letters[token]
        for scorer in (self.hotwords, self.language_model):
            if scorer is not None:
                child.bonus += scorer.score_prefix(child, self.space_id)
        prefix.children[token] = child
        return child


def _empty_prefix(language_model: Scorer | None) -> Prefix:
    """Return the empty prefix with which the search of an utterance begins."""
    prefix = Prefix(ROOT, None)
    prefix.blank = prefix.score = 0.0
    prefix.in_beam = True
    prefix.word_letters = None if language_model is None else language_model.dictionary
    return prefix


def _check_frame(number: int, log_probs: Sequence[float], ids: Sequence[int]) -> None:
    if len(log_probs) != len(ids):
        raise ValueError(f"frame {number} has {len(log_probs)} log probabilities, but {len(ids)} ids")
    best = max(log_probs, default=-inf)
    if not -inf < best <= MAX_LOG_PROB or log_probs[0] == -inf or isnan(sum(log_probs)):
        raise ValueError(f"frame {number}: expected log probabilities, greatest first, got {log_probs[:3]}")
