"""Request parsing for Ops that read texts: extracts the texts, and builds the inputs of a BERT model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.errors import InvalidInput, ServingError

T = TypeVar("T")
R = TypeVar("R")
Feed = dict[str, npt.NDArray[np.int64]]

_MAX_KEYS = 20  # keys in a message
TENSOR = "text"  # of KServe v2: `input_tensors = {"text": "BYTES [-1]"}`
EXAMPLE = '{"key": ["0"], "value": ["a text"]}'


def each(function: Callable[[T], R], items: Iterable[T]) -> list[R | ServingError]:
    """Return the function's result for each item, or the ServingError that it raised for the item.

    Hooks for whole batches use this function, so that one bad request does not fail the others.
    """
    results: list[R | ServingError] = []
    for item in items:
        try:
            results.append(function(item))
        except ServingError as exc:
            results.append(exc)
    return results


def named_texts(
    inputs: Mapping[str, Any], name: str, max_chars: int | None, *, alone: bool = True
) -> list[str]:
    """Return the texts of a request under the name `name`: a single text, a list, or a tensor's elements.

    If the name is missing, the texts under the keys "0", "1", ... are returned. max_chars: maximum length of
    a text; None: unlimited. alone: whether this is the only input with texts, so that numbered keys are
    unambiguous. Raises InvalidInput that names the text by its number.
    """
    value = inputs.get(name)
    if value is None:
        numbers = map(str, range(len(inputs) if alone else 0))
        numbered = [inputs[number] for number in numbers if number in inputs]
        if not numbered:
            raise InvalidInput(f"'{name}' is missing: send a text under this name")
        value = numbered
    elements = value.ravel().tolist() if isinstance(value, np.ndarray) else value
    many = list(elements) if isinstance(elements, list | tuple) else [elements]
    if not many:
        raise InvalidInput(f"'{name}' has no text")
    texts = [_decoded(element, number, name) for number, element in enumerate(many)]
    for number, text in enumerate(texts):
        if fault := _fault(text, max_chars):
            where = f"'{name}'" if len(texts) == 1 else f"text {number} of '{name}'"
            raise InvalidInput(f"{where} {fault}")
    return texts


def numbered_texts(inputs: Mapping[str, Any], max_chars: int) -> list[str]:
    """Return the texts of a request under the keys "0", "1", ..., in order, or of a tensor named `text`.

    Raises InvalidInput if there is no text or a number is missing, and for a text of a wrong type, an empty
    text, or a text over `max_chars`. These checks run before tokenization. Errors about keys show an example
    of a message.
    """
    tensor = inputs.get(TENSOR)
    if isinstance(tensor, np.ndarray):
        texts = [_decoded(element, number, TENSOR) for number, element in enumerate(tensor.ravel())]
        if not texts:
            raise InvalidInput(f"the tensor '{TENSOR}' has no elements")
        for number, text in enumerate(texts):
            if fault := _fault(text, max_chars):
                raise InvalidInput(f"element {number} of '{TENSOR}' {fault}")
        return texts
    if not inputs:
        raise _refusal("the request has no texts")
    texts = []
    for number in range(len(inputs)):
        text = inputs.get(str(number))
        if text is None:
            keys = ", ".join(map(repr, list(inputs)[:_MAX_KEYS]))
            raise _refusal(f"key '{number}' is missing; the keys of texts count from '0', given are {keys}")
        if fault := _fault(text, max_chars):
            raise _refusal(f"the text under key '{number}' {fault}")
        texts.append(text)
    return texts


def _decoded(element: Any, number: int, name: str) -> Any:
    try:
        return element.decode() if isinstance(element, bytes) else element
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"element {number} of '{name}' is no UTF-8: {exc.reason} at byte {exc.start}"
        ) from None


def _fault(text: Any, max_chars: int | None) -> str:
    """Return why a text is rejected, as the end of an error message; empty for a valid text."""
    if not isinstance(text, str):
        return f"is no text but {type(text).__name__}"
    if not text.strip():
        return "is empty"
    if 2 * text.count("\ufffd") > len(text):
        return "is hardly anything but U+FFFD: it was sent in GBK, say; send UTF-8"
    if max_chars is not None and len(text) > max_chars:
        return f"has {len(text)} characters, {max_chars} are allowed"
    return ""


def bert_feed(token_ids: Sequence[Sequence[int]], max_tokens: int) -> Feed:
    """Build BERT's input tensors from the token ids of each text: int64 [texts, longest].

    The tensors are `input_ids`, `token_type_ids` and `attention_mask`. Rows are padded with 0, the id of
    [PAD]. Raises InvalidInput for a text over `max_tokens`, special tokens included.
    """
    longest = max(map(len, token_ids))
    if longest > max_tokens:
        raise _refusal(f"a text has {longest} tokens, the model reads {max_tokens}: shorten or split it")
    rows = token_ids if len(token_ids) == 1 else [[*ids, *[0] * (longest - len(ids))] for ids in token_ids]
    input_ids = np.array(rows, np.int64)
    mask = np.minimum(input_ids, 1)
    segments = np.zeros(input_ids.shape, np.int64)
    return {"input_ids": input_ids, "token_type_ids": segments, "attention_mask": mask}


def _refusal(what: str) -> InvalidInput:
    return InvalidInput(f"{what}. A valid message: {EXAMPLE}")
