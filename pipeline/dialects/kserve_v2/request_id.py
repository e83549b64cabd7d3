"""Adds the id of a request to its response in the front, where responses are shared by several requests."""

from __future__ import annotations

from typing import Any

import msgspec

from pipeline.dialects.kserve_v2.answers import JSON, PROTO
from pipeline.dialects.message_fields import encode_varint

WITH_LATER_ID = (JSON, PROTO)  # forms of responses
_ID_TAG = b"\x1a"  # ModelInferResponse.id: field 3, length-delimited


class RequestIdFinish:
    """Adds an id to a response that a worker has encoded without one, as its `Request.finish`."""

    is_cacheable = True

    def __init__(self, request_id: str, form: str) -> None:
        """form: a name of `WITH_LATER_ID`."""
        self._id = request_id
        self._form = form

    def begin(self) -> None:
        """Prepare nothing."""

    def end(self, answer: Any) -> Any:
        """Return the response with the id. Errors, and None for a client that has left, are unchanged."""
        if not isinstance(answer, list) or not answer:
            return answer
        document, *tensors = answer
        if self._form == JSON:
            return [b'{"id":%b,%b' % (msgspec.json.encode(self._id), bytes(document)[1:]), *tensors]
        request_id = self._id.encode()
        return [b"".join([document, _ID_TAG, encode_varint(len(request_id)), request_id]), *tensors]
