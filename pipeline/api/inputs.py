"""RequestInputs: what a client has sent, as the first Op's hooks find it."""

from __future__ import annotations

from typing import Any

from pipeline.errors import MissingKey

_MOST_NAMED = 20  # keys in a message


class RequestInputs(dict[str, Any]):
    """The values of a request by key. To ask for one that was not sent is its client's mistake."""

    def __missing__(self, key: object) -> Any:
        """Raises MissingKey, which is a KeyError, too."""
        sent = [repr(name) for name in list(self)[:_MOST_NAMED]]
        if len(self) > _MOST_NAMED:
            sent.append(f"{len(self) - _MOST_NAMED} more")
        raise MissingKey(f"key {key!r} is missing; the request has {', '.join(sent) or 'no key'}")

    def __reduce__(self) -> tuple[Any, ...]:
        """As a plain dict: what an Op passes on is no request any more."""
        return dict, (dict(self),)
