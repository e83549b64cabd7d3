"""Outputs: what becomes of a request's output or error: the response, another Op's input, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from client.protos.pipeline_service_pb2 import Response
from pipeline.dialects.forms import Form
from pipeline.errors import HookFailed, ServingError
from pipeline.messages.frames import stow
from pipeline.messages.messages import Outcome, Refusal, Settled
from pipeline.messages.values import NotEncodable, Part, encode
from pipeline.models.tensor_spec import TensorSpec
from pipeline.paddle_serving.packages import outputs_of
from pipeline.worker.call import Call
from pipeline.worker.hooks import Hooks


class Outputs:
    """Makes what a reply says of each request.

    forms: of answers, by name. answers: the Op's output is the response. declared: what the response holds.
    fetches: what the model gives when it is asked by itself.
    """

    def __init__(
        self,
        hooks: Hooks,
        forms: Mapping[str, Form],
        *,
        answers: bool,
        declared: Sequence[TensorSpec] = (),
        fetches: Sequence[TensorSpec] = (),
    ) -> None:
        self._hooks = hooks
        self._forms = forms
        self._answers = answers
        self._declared = declared
        self._fetches = fetches

    def settled(self, call: Call, tail: list[Part]) -> Settled:
        """How a call is settled; its large parts are added to `tail`."""
        if call.error is None:
            try:
                outcome, parts = self._outcome(call)
                return Settled(call.index, outcome, stow(parts, tail))
            except ServingError as exc:
                call.error = exc
            except BaseException as exc:  # an answer's own __repr__, say: it must not take the batch along
                call.error = self._hooks.failure(exc, "the answer's printing", call.request)
        return Settled(call.index, Outcome.ERROR, refusal=Refusal.of(call.error))

    def _outcome(self, call: Call) -> tuple[Outcome, list[Part]]:
        output = call.output
        if call.direct:
            return Outcome.ANSWER, self._rendered(call, self._fetches)
        if self._hooks.jumps and self._hooks.jump(call.own or self._hooks.op, call.request, output):
            return Outcome.JUMP, self._encoded(output)
        if self._answers:
            return Outcome.ANSWER, self._rendered(call, self._declared)
        if self._hooks.unpacks:
            log_id = call.request.log_id.to_bytes(8, "little", signed=True)
            return Outcome.INPUTS, [log_id, *self._encoded(output)]
        return Outcome.VALUE, self._encoded(output)

    def _rendered(self, call: Call, specs: Sequence[TensorSpec]) -> list[Part]:
        output, form = call.output, self._forms[call.form]
        if isinstance(output, Response):  # the app's ResponseOp made it
            if form.render_message is not None:
                return form.render_message(output)
            output = outputs_of(output)
        return form.render(output, call.wish, call.model_version, specs)

    def _encoded(self, output: Any) -> list[Part]:
        try:
            return encode(output, allow_pickle=True)
        except NotEncodable:
            for key, value in output.items():
                try:
                    encode(value, allow_pickle=True)
                except NotEncodable as exc:
                    raise HookFailed(f"[{self._hooks.op.name}] output {key!r}: {exc}") from exc
            raise
