"""Texts to the entities in them, from a model that gives scores for each token."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline.api.answer import Answer
from pipeline.errors import ConfigError, InvalidInput
from pipeline.ops import parameters
from pipeline.ops.entity_spans import entities, joined_tokens, span_of, tags_of, words_of
from pipeline.ops.labels import probabilities
from pipeline.ops.parameters import Parameter
from pipeline.ops.text_task import Array, Asked, TextTask
from pipeline.ops.text_tokenizer import Tokens
from pipeline.ops.text_windows import nearest_window

TOKENS = "tokens"
"""The key under which clients of PaddleNLP's services send texts, or texts in tokens."""
_MOST_TOKENS = 1 << 16  # of a text that comes in tokens
_PADDING = {"text": "", "label": "", "score": 0.0, "start": -1, "end": -1}


class Found(NamedTuple):
    """An entity: its text, its characters in the whole text from `start` to before `end`, and likewise its
    tokens where the text came in tokens."""

    text: str
    label: str
    score: float
    start: int
    end: int
    tokens: tuple[int, int] | None = None

    def document(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in _PADDING}
        return told if self.tokens is None else {**told, TOKENS: list(self.tokens)}


class EntitiesTask(TextTask):
    """The entities of each text, in its order. A text may come in tokens, with `pre_split`."""

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("threshold", parameters.share, "Least score of an entity that is told."),
        Parameter("pre_split", parameters.flag, "Whether each text is a list of tokens in JSON."),
    )
    pairs = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if not len(self.labels):
            raise ConfigError(f"{self.model.directory}: entities need labels, and the model has none")
        self._tags = tags_of(self.labels.tolist(), self.output.scheme, self.output.outside)

    def declared(self) -> dict[str, str]:
        whole = dict.fromkeys(("start", "end"), "INT64 [-1, -1]")
        return {"text": "BYTES [-1, -1]", "label": "BYTES [-1, -1]", "score": "FP32 [-1, -1]", **whole}

    def rows(self, inputs: Mapping[str, Any], wanted: dict[str, Any]) -> Asked:
        texts: list[Any] = self._sent(inputs, split=wanted.get("pre_split", False))
        if isinstance(texts[0], list):
            tokens = self.tokenizer.tokens_of_split(texts)
        else:
            tokens = self.tokenizer.tokens([text[: self.most_chars] for text in texts], places=True)
        asked = self._of_texts(wanted, tokens)
        asked.texts, asked.tokens = texts, tokens
        return asked

    def _sent(self, inputs: Mapping[str, Any], *, split: bool) -> list[Any]:
        """The texts, or their tokens: all of one kind."""
        if TOKENS in inputs and self.name not in inputs:
            given = _printed(inputs[TOKENS])
            if given and all(isinstance(one, list) for one in given):
                return [self._checked(one, TOKENS, number) for number, one in enumerate(given)]
            return self.texts({self.name: given}, self.name)
        texts: list[Any] = list(self.texts(inputs, self.name))
        return [self._checked(_json(t), self.name, n) for n, t in enumerate(texts)] if split else texts

    def _checked(self, tokens: Any, name: str, number: int) -> list[str]:
        where = f"text {number} of {name!r}"
        if not isinstance(tokens, list):
            raise InvalidInput(f'{where} is no list of tokens in JSON: send one like ["a", "b"]')
        if not tokens:
            raise InvalidInput(f"{where} has no tokens")
        if len(tokens) > _MOST_TOKENS:
            raise InvalidInput(f"{where} has {len(tokens)} tokens; {_MOST_TOKENS} are allowed")
        for at, token in enumerate(tokens):
            if not isinstance(token, str):
                raise InvalidInput(f"{where}: token {at} is no text but {type(token).__name__}")
            if len(token) > self.most_chars:
                raise InvalidInput(
                    f"{where}: token {at} has {len(token)} characters; {self.most_chars} are allowed"
                )
        return tokens

    def answer_of(self, asked: Asked, scores: list[Array]) -> dict[str, Any]:
        least = asked.parameters.get("threshold", self.output.threshold)
        found, classes, row = [], [], 0
        for number, (part, tokens) in enumerate(zip(asked.cuts, asked.tokens, strict=True)):
            windows = scores[row : row + len(part.spans)]
            rows = asked.rows[row : row + len(part.spans)]
            row += len(part.spans)
            read = part.spans[-1][1]
            chosen = nearest_window(read, part.spans)
            logits = (
                np.stack(
                    [
                        windows[window][0, rows[window].at + token - part.spans[window][0]]
                        for token, window in enumerate(chosen.tolist())
                    ]
                )
                if read
                else np.zeros((0, len(self.labels)), np.float32)
            )
            self.names_of(logits.shape[-1])
            likely = probabilities(logits.astype(np.float32), "softmax")
            classes.append(likely.argmax(1).tolist())
            many = self._found(asked.texts[number], tokens, likely)
            found.append([one for one in many if one.score >= least])
        return _answer(found, classes)

    def _found(self, text: str | list[str], tokens: Tokens, likely: Array) -> list[Found]:
        """The entities of a text by the probabilities of its tokens; those beyond are not read."""
        if isinstance(text, list):
            return self._found_in_tokens(text, tokens, likely)
        offsets = tokens.offsets[: len(likely)]
        words = words_of(text, self._own(tokens, offsets))
        many = []
        for first, last, kind, score in self._of_words(words, likely):
            start, end = span_of(text, offsets[words[first][0]][0], offsets[words[last][-1]][1])
            many.append(Found(text[start:end], kind, score, start, end))
        return many

    def _own(self, tokens: Tokens, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The offsets; none of a piece that is a space alone, to which SentencePiece gives the next sign."""
        space = self.tokenizer.space
        return [
            (0, 0) if number == space else span for number, span in zip(tokens.ids, offsets, strict=False)
        ]

    def _found_in_tokens(self, text: list[str], tokens: Tokens, likely: Array) -> list[Found]:
        words: list[list[int]] = [[] for _ in text]
        for at, word in enumerate(tokens.words[: len(likely)]):
            words[word].append(at)
        whole, places = joined_tokens(text)
        many = []
        for first, last, kind, score in self._of_words(words, likely):
            start, end = places[first][0], places[last][1]
            many.append(Found(whole[start:end], kind, score, start, end, (first, last + 1)))
        return many

    def _of_words(self, words: Sequence[Sequence[int]], likely: Array) -> list[tuple[int, int, str, float]]:
        """First and last word, kind and score of each entity. The first piece of a word tells its label."""
        none = int(next((at for at, tag in enumerate(self._tags) if not tag.kind), -1))
        best = [int(likely[word[0]].argmax()) if word else none for word in words]
        sure = [float(likely[word[0]].max()) if word else 0.0 for word in words]
        tags = [self._tags[at] if at >= 0 else type(self._tags[0])("") for at in best]
        return [
            (one.first, one.last, one.kind, float(np.mean(sure[one.first : one.last + 1])))
            for one in entities(tags)
        ]


def _answer(found: Sequence[Sequence[Found]], classes: Sequence[Sequence[int]]) -> Answer:
    longest = max(map(len, found), default=0)
    answer: dict[str, Any] = {}
    for name, missing in _PADDING.items():
        rows = [[getattr(one, name) for one in many] + [missing] * (longest - len(many)) for many in found]
        dtype: Any = {"score": np.float32, "start": np.int64, "end": np.int64}.get(name, object)
        answer[name] = np.array(rows, dtype).reshape(len(found), longest)
    told = [[one.document() for one in many] for many in found]
    as_paddlenlp = [[_as_paddlenlp(one) for one in many] for many in found]
    key_values = {
        "value": json.dumps(as_paddlenlp, ensure_ascii=False),
        "tokens_label": json.dumps(classes),
    }
    return Answer(answer, rows=[{"entities": many} for many in told], key_values=key_values)


def _as_paddlenlp(one: Found) -> dict[str, Any]:
    first, end = one.tokens or (one.start, one.end)
    return {"pos": [first, end - 1], "entity": one.text, "label": one.label, "score": round(one.score, 6)}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _printed(given: Any) -> list[Any]:
    """Texts, or lists of tokens, as clients of Paddle Serving print them: a list, or an array of NumPy's."""
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, str):
        return given if isinstance(given, list) else [given]
    if not given.lstrip().startswith(("[", "array(")):
        return [given]
    try:
        read = _value(ast.parse(given.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidInput(f"{TOKENS!r} is neither a text, nor a list of texts or of their tokens") from None
    return read if isinstance(read, list) else [read]


def _value(node: ast.expr) -> Any:
    """What a list, a text, or the repr of an array stands for. Raises ValueError for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("array", "list"):
        return _value(node.args[0])
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(element) for element in node.elts]
    if isinstance(node, ast.Constant):
        return node.value
    raise ValueError
