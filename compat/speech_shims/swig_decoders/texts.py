"""Token ids to texts."""

from __future__ import annotations

from collections.abc import Sequence


def map_sent(sent: Sequence[int], vocabulary: Sequence[str], greedy: bool = False, blank_id: int = 0) -> str:
    """Return the text of token ids.

    greedy: whether the ids are the best tokens of each frame; then repeated tokens count once, and blanks are
    dropped.
    """
    if greedy:
        sent = [
            token
            for token, previous in zip(sent, (None, *sent), strict=False)
            if token not in (previous, blank_id)
        ]
    return "".join([vocabulary[_check_token(token, vocabulary)] for token in sent])


def map_batch(
    batch_sents: Sequence[Sequence[int]],
    vocabulary: Sequence[str],
    num_processes: int = 1,
    greedy: bool = False,
    blank_id: int = 0,
) -> list[str]:
    """Return the text of each list of token ids. num_processes is accepted but not used."""
    return [map_sent(sent, vocabulary, greedy, blank_id) for sent in batch_sents]


def _check_token(token: int, vocabulary: Sequence[str]) -> int:
    if not 0 <= token < len(vocabulary):
        raise ValueError(f"token id {token} is not in the vocabulary, which has {len(vocabulary)} entries")
    return token
