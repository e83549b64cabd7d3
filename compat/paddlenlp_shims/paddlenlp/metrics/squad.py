"""Answers of an extractive reading model from its start and end scores, and their quality (SQuAD).

Source: paddlenlp 2.8.1, metrics/squad.py (Apache-2.0).
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..utils.log import logger

_EMPTY = {"text": "empty", "start_logit": 0.0, "end_logit": 0.0, "score": 0.0}
_PUNCTUATION = str.maketrans("", "", string.punctuation + "，。：？！“”；’《》·、「」（）－～『』")
Scores = dict[str, Any]


def compute_prediction(
    examples: Any,
    features: Sequence[Mapping[str, Any]],
    predictions: Sequence[Any],
    version_2_with_negative: bool = False,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    null_score_diff_threshold: float = 0.0,
) -> tuple[dict[str, str], dict[str, Any], dict[str, float]]:
    """Return by question: the best answer, the `n_best_size` best answers, and the empty answer's score.

    features: the windows into which texts were split, with `example_id` and `offset_mapping`. predictions:
    start and end scores, a row for each window. version_2_with_negative: whether a question may have no
    answer.
    """
    if len(predictions) != 2:
        raise AssertionError("`predictions` should be a tuple with two elements (start_logits, end_logits).")
    if len(predictions[0]) != len(features):
        raise AssertionError("Number of predictions should be equal to number of features.")
    windows = defaultdict(list)
    for feature, start_logits, end_logits in zip(features, *predictions, strict=True):
        windows[feature["example_id"]].append((feature, start_logits, end_logits))
    best: dict[str, str] = {}
    n_best: dict[str, Any] = {}
    differences: dict[str, float] = {}
    for example in examples:
        key = example["id"]
        answers, null = _n_best_answers(windows[key], version_2_with_negative, n_best_size, max_answer_length)
        null_score = null["score"]
        for answer in answers:
            start, end = answer.pop("offsets")
            answer["text"] = example["context"][start:end]
        if not answers or (len(answers) == 1 and answers[0]["text"] == ""):
            answers.insert(0, dict(_EMPTY))
        _add_probabilities(answers)
        best[key] = answers[0]["text"]
        if version_2_with_negative:
            text = next(answer for answer in answers if answer["text"] != "")
            differences[key] = float(null_score - text["start_logit"] - text["end_logit"])
            best[key] = "" if differences[key] > null_score_diff_threshold else text["text"]
        n_best[key] = [
            {name: float(v) if isinstance(v, np.floating) else v for name, v in answer.items()}
            for answer in answers
        ]
    return best, n_best, differences


def _n_best_answers(
    windows: Sequence[Any], may_have_none: bool, n_best_size: int, max_answer_length: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the best answers in all windows of one text, and the empty answer with its lowest score."""
    none = [_answer((0, 0), starts[0], ends[0]) for _, starts, ends in windows]
    null = min(none, key=_get_score, default=_answer((0, 0), 0.0, 0.0))
    answers = [
        answer
        for feature, starts, ends in windows
        for answer in _window_answers(feature, starts, ends, n_best_size, max_answer_length)
    ]
    if may_have_none:
        answers.append(null)
    answers = sorted(answers, key=_get_score, reverse=True)[:n_best_size]
    if may_have_none and all(answer["offsets"] != (0, 0) for answer in answers):
        answers.append(null)
    return answers, null


def _get_score(answer: Mapping[str, Any]) -> Any:
    return answer["score"]


def _answer(offsets: tuple[int, int], start_logit: Any, end_logit: Any) -> dict[str, Any]:
    score = start_logit + end_logit
    return {"offsets": offsets, "score": score, "start_logit": start_logit, "end_logit": end_logit}


def _window_answers(
    feature: Mapping[str, Any], starts: Any, ends: Any, n_best_size: int, max_answer_length: int
) -> list[dict[str, Any]]:
    """Return the candidate answers in one window, from its best start and end scores."""
    spans, is_max_context = feature["offset_mapping"], feature.get("token_is_max_context")
    best_starts, best_ends = (
        [place for place in np.argsort(scores)[-1 : -n_best_size - 1 : -1].tolist() if _is_text(spans, place)]
        for scores in (starts, ends)
    )
    if is_max_context is not None:
        best_starts = [start for start in best_starts if is_max_context.get(str(start), False)]
    return [
        _answer((spans[start][0], spans[end][1]), starts[start], ends[end])
        for start in best_starts
        for end in best_ends
        if start <= end < start + max_answer_length
    ]


def _is_text(spans: Sequence[Any], place: int) -> bool:
    return place < len(spans) and spans[place] is not None and len(spans[place]) > 0


def _add_probabilities(answers: list[dict[str, Any]]) -> None:
    """Replace the scores of the answers by probabilities, in place (softmax)."""
    scores = np.array([answer.pop("score") for answer in answers])
    powers = np.exp(scores - np.max(scores))
    for answer, probability in zip(answers, powers / powers.sum(), strict=True):
        answer["probability"] = probability


def normalize_answer(s: str | None) -> str:
    """Return a text in lower case, without punctuation, articles and double spaces."""
    text = (s or "").lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def compute_exact(a_gold: str, a_pred: str) -> int:
    """Return 1 if two answers are equal after normalization, else 0."""
    return int(normalize_answer(a_gold) == normalize_answer(a_pred))


def compute_f1(a_gold: str, a_pred: str, is_whitespace_splited: bool = True) -> float:
    """Return F1 of the words that two answers share.

    Without `is_whitespace_splited`, characters are compared.
    """
    gold, pred = (normalize_answer(text).split() for text in (a_gold, a_pred))
    if not is_whitespace_splited:
        gold, pred = (list(words[0]) if words else [] for words in (gold, pred))
    if not gold or not pred:
        return int(gold == pred)
    common = (Counter(gold) & Counter(pred)).total()
    precision, recall = common / len(pred), common / len(gold)
    return (2 * precision * recall) / (precision + recall) if common else 0


def get_raw_scores(
    examples: Iterable[Any], preds: Mapping[str, str], is_whitespace_splited: bool = True
) -> tuple[Scores, Scores]:
    """Return, by question, whether the answer is exact, and its F1.

    If there are several right answers, the best score counts.
    """
    exact: Scores = {}
    f1: Scores = {}
    for example in examples:
        key = example["id"]
        right = [text for text in example["answers"]["text"] if normalize_answer(text)] or [""]
        if key not in preds:
            logger.info(f"Missing prediction for {key}")
            continue
        exact[key] = max(compute_exact(text, preds[key]) for text in right)
        f1[key] = max(compute_f1(text, preds[key], is_whitespace_splited) for text in right)
    return exact, f1


def squad_evaluate(
    examples: Sequence[Any],
    preds: Mapping[str, str],
    na_probs: Mapping[str, float] | None = None,
    na_prob_thresh: float = 1.0,
    is_whitespace_splited: bool = True,
) -> dict[str, Any]:
    """Return, and log, exact match and F1 of the answers in percent, by name.

    preds: answer by question. na_probs: score of the empty answer by question; if it is above
    `na_prob_thresh`, the question counts as unanswered. is_whitespace_splited: False for Chinese texts.
    """
    na_probs = na_probs or dict.fromkeys(preds, 0.0)
    has_answer = {
        # PaddleNLP takes is_impossible for "has an answer".
        example["id"]: bool(example.get("is_impossible", example["answers"]["answer_start"]))
        for example in examples
    }
    raw = get_raw_scores(examples, preds, is_whitespace_splited)
    scores = [
        {
            key: float(not has_answer[key]) if na_probs[key] > na_prob_thresh else score
            for key, score in raw_scores.items()
        }
        for raw_scores in raw
    ]
    result = _mean_scores(scores, list(scores[0]))
    with_answer = [key for key, has in has_answer.items() if has]
    without = [key for key, has in has_answer.items() if not has]
    for prefix, keys in (("HasAns", with_answer), ("NoAns", without)):
        if keys:
            result |= {f"{prefix}_{name}": value for name, value in _mean_scores(scores, keys).items()}
    if without:
        for name, raw_scores in zip(("exact", "f1"), raw, strict=True):
            best, threshold = _find_best_threshold(preds, raw_scores, na_probs, has_answer)
            result |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    logger.info(json.dumps(result, indent=2))
    return result


def _mean_scores(scores: Sequence[Scores], keys: Sequence[str]) -> dict[str, Any]:
    exact, f1 = (100.0 * sum(values[key] for key in keys) / len(keys) for values in scores)
    return {"exact": exact, "f1": f1, "total": len(keys)}


def _find_best_threshold(
    preds: Mapping[str, str], scores: Scores, na_probs: Mapping[str, float], has_answer: Mapping[str, bool]
) -> tuple[float, float]:
    """Return the best score in percent, and the no-answer threshold that gives it."""
    score = best = sum(1 for has in has_answer.values() if not has)
    threshold = 0.0
    for key in sorted(na_probs, key=lambda key: na_probs[key]):
        if key in scores:
            score += scores[key] if has_answer[key] else -bool(preds[key])
            if score > best:
                best, threshold = score, na_probs[key]
    return 100.0 * best / len(scores), threshold
