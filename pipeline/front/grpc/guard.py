"""RpcGuard: API keys and restricted APIs of the gRPC ports. Rejects calls before their message arrives."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pipeline.api.restrictions import RestrictedApis
from pipeline.errors import RestrictedApi, ServingError, Unauthenticated
from pipeline.front.grpc.call_context import CallContext
from pipeline.front.metrics.access_log import AccessLog
from pipeline.front.scheduler.admission import CALLER, KeyRing, caller, shown_key


class RpcGuard:
    """Checks the API key and the restricted API of each call.

    open_methods: methods that need no key. apis: the API of each method.
    """

    def __init__(
        self,
        keys: KeyRing | None,
        restricted: RestrictedApis,
        apis: Mapping[str, str],
        access_log: AccessLog,
        open_methods: Collection[str],
    ) -> None:
        self._keys = keys
        self._restricted = restricted
        self._apis = apis
        self._access_log = access_log
        self._open_methods = open_methods

    def receives(self, method: str) -> bool:
        """Return whether messages of the method are received: unauthenticated clients must not use memory."""
        return self._keys is None or method not in self._open_methods

    def refusal(self, method: str, context: CallContext) -> ServingError | None:
        """Return the error of a call that is not allowed, or None. Sets `CALLER` for the handler."""
        headers = [(_bytes(key), _bytes(value)) for key, value in context.invocation_metadata() or ()]
        CALLER.set(None)
        try:
            if self._keys is not None and method not in self._open_methods:
                CALLER.set(self._keys.find(shown_key(headers)))
            self._restricted.check(self._apis[method], headers)
        except (Unauthenticated, RestrictedApi) as error:
            self._access_log.refused("grpc", error, caller(context.peer()))
            return error
        return None


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
