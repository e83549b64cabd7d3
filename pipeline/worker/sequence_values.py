"""Values that an Op keeps for a sequence: `self.sequence` in hooks, and the hooks `start` and `end`."""

from __future__ import annotations

from typing import Any

from pipeline.errors import HookFailed
from pipeline.messages.frames import NotEncodable, encode
from pipeline.models.sequence_tensors import END
from pipeline.worker.call import Call
from pipeline.worker.hooks import Hooks

VALUES_KEY = ""  # of the values in the state of a sequence, beside the model's tensors by input
KEEPABLE = "keep str, bytes, numbers, bool, None, NumPy arrays, and lists, tuples and dicts of them"


class SequenceValues:
    """Passes the values of a sequence to the hooks of a request, and collects them for the next request.

    The values travel as plain data and never as pickles, so any instance may run the next request.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def begin(self, call: Call) -> None:
        """Give the request the stored values of its sequence.

        The first request of a sequence calls the hook `start`.
        """
        if call.error is not None:
            return
        state = call.sequence_state
        call.request.sequence = {} if state is None else state.pop(VALUES_KEY, {})
        if call.op is not None:
            call.op.sequence = call.request.sequence
        if state is None:
            self._call_hook("start", call)

    def collect(self, call: Call) -> None:
        """Store the sequence's values after a request, for its next request.

        The last request first calls the hook `end`.
        """
        if call.error is not None:
            return
        self.read_attribute(call)
        if call.request.flags & END:
            self._call_hook("end", call)
        if call.error is None:
            try:
                self._check(call.request.sequence)
            except BaseException as exc:  # of a value of the app's own class
                call.error = self._hooks.failure(exc, "self.sequence", call.request)
                return
            state = {**(call.sequence_state or {}), **(call.next_state or {})}
            call.next_state = {**state, VALUES_KEY: call.request.sequence}

    def read_attribute(self, call: Call) -> None:
        """Read `self.sequence` of the request's Op again, because a hook may have replaced the dict."""
        if call.op is not None:
            call.request.sequence = call.op.sequence

    def _call_hook(self, hook: str, call: Call) -> None:
        try:
            op = call.op
            if op is None:  # batch-wise hooks alone
                op = self._hooks.own_copy()
                op.sequence = call.request.sequence
            getattr(op, hook)()
            call.request.sequence = op.sequence
        except BaseException as exc:
            call.error = self._hooks.failure(exc, hook, call.request)

    def _check(self, values: Any) -> None:
        """Raise HookFailed, with the Op and the key, for a value that can't be sent as plain data."""
        name = self._hooks.op.name
        if type(values) is not dict:
            raise HookFailed(f"[{name}] self.sequence is a {type(values).__name__}; it takes a dict")
        try:
            encode(values, allow_pickle=False)
            return
        except NotEncodable as exc:
            reason = str(exc)
        for key, value in values.items():
            try:
                encode([key, value], allow_pickle=False)
            except NotEncodable as exc:
                raise HookFailed(f"[{name}] self.sequence[{key!r}] can't be kept: {exc}; {KEEPABLE}") from exc
        raise HookFailed(f"[{name}] self.sequence can't be kept: {reason}; {KEEPABLE}")
