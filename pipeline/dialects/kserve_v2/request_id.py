"""Adds the id of a request to its response in the front, where responses are shared by several requests."""

from __future__ import annotations

from typing import Any

import msgspec

from pipeline.dialects.kserve_v2.answers import JSON, PROTO
from pipeline.dialects.message_fields import encode_varint

WITH_LATER_ID = (JSON, PROTO)  # forms of responses
_ID_TAG = b"\x1a"  # ModelInferResponse.id: field 3, length-delimited


class RequestIdFinish:
    """Finish hook of a request: adds its id to a response that a worker has encoded without an id.

    Responses without ids can be shared by the response cache.
    """

    is_cacheable = True

    def __init__(self, request_id: str, form: str) -> None:
        """Store the request's id. form: response format, one of `WITH_LATER_ID`."""
        self._id = request_id
        self._form = form

    def begin(self) -> None:
        """Do nothing, because this hook needs no preparation."""

    def end(self, answer: Any) -> Any:
        """Return the response with the id added. Return errors and None (the client has left) unchanged."""
        if not isinstance(answer, list) or not answer:
            return answer
        document, *tensors = answer
        if self._form == JSON:
            return [b'{"id":%b,%b' % (msgspec.json.encode(self._id), bytes(document)[1:]), *tensors]
        request_id = self._id.encode()
        return [b"".join([document, _ID_TAG, encode_varint(len(request_id)), request_id]), *tensors]
