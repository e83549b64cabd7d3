"""KServe v2's `generate` over HTTP: a JSON object whose keys are the model's inputs, answered by another."""

from __future__ import annotations

import json
from typing import Any

from pipeline.config.limits import Limits
from pipeline.dialects.json_nesting import check_depth
from pipeline.dialects.json_outline import Outline
from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.models import KServeModel
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.dialects.kserve.unread import Written
from pipeline.dialects.kserve_v2.asked import Asked, Given, refuse_in_json


def parse_generate(body: bytes, model: KServeModel, limits: Limits, outline: Outline | None = None) -> Asked:
    """Read the body: a key that is no input is a parameter; `id` and `parameters` are as in other requests.

    A value is one element or a flat list of them, of one row where the model has rows. Raises KServeRefusal,
    and TooLarge for a document that nests deeper than limits.json_depth. outline: of a large body.
    """
    if outline is not None:
        body = outline.text
    elif body.count(b"[") + body.count(b"{") > limits.json_depth:  # each level of nesting has a bracket
        check_depth(body, limits.json_depth)
    document = json_fields.parse(body)
    if not isinstance(document, dict):
        raise json_fields.unparsed("document", "attempt to access JSON non-object as object")
    if len(document) > limits.tensors:
        raise KServeRefusal(f"{len(document)} members were given; limits.tensors is {limits.tensors}")
    asked = Asked()
    datatypes = {spec.name: spec.datatype for spec in model.signature.inputs}
    # Where a row is one element, a list has several rows.
    in_rows = {spec.name for spec in model.signature.inputs if len(spec.shape) > 1}
    for name, value in document.items():
        datatype = datatypes.get(name)
        if datatype is not None or (model.signature.open and _is_text(value)):
            rows = [1] if model.signature.max_batch_size and name in in_rows else []
            asked.give(_given(name, datatype or "BYTES", value, rows))
        elif name == "id":
            asked.request_id = json_fields.text(document, "id")
        elif name == "parameters":
            for parameter, given in json_fields.get_parameters(document).items():
                asked.take_parameter(parameter, given)
        else:
            asked.take_parameter(name, value)
    return asked


def _given(name: str, datatype: str, value: Any, rows: list[int]) -> Given:
    if value is None or isinstance(value, dict):
        raise KServeRefusal(f"input '{name}' is neither an element nor a list of them")
    refuse_in_json(name, datatype)
    elements = value if isinstance(value, list) else [value]
    data = json.dumps(elements, separators=(",", ":")).encode()
    return Given(name, datatype, [*rows, len(elements)], data, Written.JSON)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(isinstance(element, str) for element in value)
    )


class AsEvent:
    """The answer as the only event of a stream; what is a refusal stays one. `Request.finish`."""

    def begin(self) -> None:
        pass

    def end(self, answer: Any) -> Any:
        return [b"data: %b\n\n" % answer[0]] if isinstance(answer, list) else answer
