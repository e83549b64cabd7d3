"""State of sequences in a worker: adds state and controls to a request's feeds, and takes the next state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeline.errors import HookFailed, ModelFailed
from pipeline.models.sequence_tensors import SequenceTensors
from pipeline.worker.call import Call


class SequenceState:
    """Adds the state of sequences to model inputs, and takes the next state from the model's outputs.

    The front process keeps the state between two requests, so any instance may run the next request.
    """

    def __init__(self, tensors: SequenceTensors) -> None:
        self._tensors = tensors
        self._initial = {state.input: state.build_initial() for state in tensors.states}

    def add_feeds(self, calls: Iterable[Call]) -> None:
        """Add state and controls to the feeds (model inputs) of requests.

        A request with unsuitable feeds fails.
        """
        for call in calls:
            if call.error is not None or not call.feeds or not isinstance(call.feeds[0], dict):
                continue
            if len(call.feeds) > 1:
                call.error = HookFailed(
                    f"preprocess returned {len(call.feeds)} feeds; a request of a sequence has one"
                )
                continue
            request = call.request
            states = {**self._initial, **(call.sequence_state or {})}
            controls = self._tensors.build_controls(request.correlation_id, request.flags)
            call.feeds = [{**call.feeds[0], **states, **controls}]

    def take_next(self, call: Call, fetch: Any) -> Any:
        """Store the next state, and return the model's outputs that clients may get.

        A request whose outputs lack a state fails.
        """
        if call.feeds is None or not self._tensors.states:
            return fetch
        outputs = fetch[0] if call.feed_is_list else fetch
        missing = [state.output for state in self._tensors.states if state.output not in outputs]
        if missing:
            raise ModelFailed(f"the model returned no output {missing[0]!r}, which is the next state")
        call.next_state = {state.input: outputs[state.output] for state in self._tensors.states}
        shown = {name: array for name, array in outputs.items() if name not in self._tensors.outputs}
        return [shown] if call.feed_is_list else shown
