"""Describes the inputs and outputs of a traced request in the worker, for the trace level TENSORS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.messages.messages import TracedTensor
from pipeline.models.tensor_spec import BY_DATATYPE
from pipeline.process.isolation import isolated
from pipeline.worker.call import Call

MAX_ELEMENTS = 10_000  # of a tensor in a trace; "..." follows
MAX_TEXT_BYTES = 1000  # of an element of a BYTES tensor
INPUT, OUTPUT = "TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT"
_DATATYPES = {dtype.numpy: name for name, dtype in BY_DATATYPE.items() if name != "BYTES"}


@isolated(())
def describe_tensors(call: Call) -> list[TracedTensor]:
    """Describe the model's inputs and outputs of a request for a trace, after the model has run."""
    tensors: list[TracedTensor] = []
    for feed in call.feeds or ():
        tensors += _describe_all(INPUT, feed)
    fetch = call.output if call.direct else call.fetch()
    for outputs in fetch if isinstance(fetch, list) else [fetch]:
        tensors += _describe_all(OUTPUT, outputs)
    return tensors


def _describe_all(activity: str, values: Any) -> Iterator[TracedTensor]:
    if not isinstance(values, Mapping):
        return
    for name, value in values.items():
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        datatype = _DATATYPES.get(array.dtype, "BYTES")
        elements = array.ravel()[:MAX_ELEMENTS]
        texts = list(_format_elements(elements, datatype))
        if array.size > MAX_ELEMENTS:
            texts.append("...")
        yield TracedTensor(activity, str(name), datatype, list(array.shape), ",".join(texts))


def _format_elements(elements: np.ndarray[Any, Any], datatype: str) -> Iterator[str]:
    """Yield the elements as texts: booleans as 0 and 1, floats with the digits of their precision."""
    if datatype == "BOOL":
        elements = elements.astype(np.uint8)
    if datatype != "BYTES":
        yield from map(str, elements)
        return
    for element in elements.tolist():
        data = element if isinstance(element, bytes) else str(element).encode()
        text = data[:MAX_TEXT_BYTES].decode(errors="replace")
        yield f'"{text}"'
