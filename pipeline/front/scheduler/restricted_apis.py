"""RestrictedApis: checks that a request carries the header which its API requires."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from pipeline.api.restrictions import Restriction
from pipeline.errors import RestrictedApi


class RestrictedApis:
    """The restricted APIs of one protocol, HTTP or gRPC."""

    def __init__(self, restrictions: Iterable[Restriction], noun: str) -> None:
        """noun: names an API in the refusal, as Triton does for this protocol."""
        self._restrictions = {each.api: (each.header.encode(), each.value.encode()) for each in restrictions}
        self._noun = noun

    def check(self, api: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise RestrictedApi where the API needs a header that is missing or has another value.

        headers: with names in lower case. The first header of a name counts.
        """
        restriction = self._restrictions.get(api)
        if restriction is None:
            return
        header, expected = restriction
        actual = next((value for name, value in headers if name == header), None)
        if actual is None or not hmac.compare_digest(actual, expected):
            raise RestrictedApi(f"This {self._noun} is restricted, expecting header '{header.decode()}'")
