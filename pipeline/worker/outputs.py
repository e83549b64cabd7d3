"""Outputs: what becomes of a request's output or error: the response, another Op's input, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from client.protos.pipeline_service_pb2 import Response
from pipeline.dialects.answer_form import AnswerForm, V1Wish, Wish
from pipeline.dialects.key_value.answers import render, render_message
from pipeline.dialects.kserve_v1.v1_answers import render_v1
from pipeline.dialects.kserve_v2.v2_answers import render_v2
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

    answers: the Op's output is the response. declared: what the response holds. fetches: what the model
    gives when it is asked by itself.
    """

    def __init__(
        self,
        hooks: Hooks,
        *,
        answers: bool,
        declared: Sequence[TensorSpec] = (),
        fetches: Sequence[TensorSpec] = (),
    ) -> None:
        self._hooks = hooks
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
            return Outcome.ANSWER, _as_tensors(call, output, self._fetches)
        if self._hooks.jumps and self._hooks.jump(call.own or self._hooks.op, call.request, output):
            return Outcome.JUMP, self._encoded(output)
        if self._answers:
            return Outcome.ANSWER, self._rendered(call)
        if self._hooks.unpacks:
            log_id = call.request.log_id.to_bytes(8, "little", signed=True)
            return Outcome.INPUTS, [log_id, *self._encoded(output)]
        return Outcome.VALUE, self._encoded(output)

    def _rendered(self, call: Call) -> list[Part]:
        output, form = call.output, call.form
        own = isinstance(output, Response)  # the app's ResponseOp made it
        if call.wish is not None:
            tensors = outputs_of(output) if own else output
            return _as_tensors(call, tensors, self._declared)
        return [render_message(output, form) if own else render(output, form)]

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


def _as_tensors(call: Call, output: Mapping[str, Any], specs: Sequence[TensorSpec]) -> list[Part]:
    """The complete answer of a request over KServe v1 or v2."""
    if call.form == AnswerForm.V1_JSON:
        return [render_v1(output, V1Wish(*call.wish), specs)]
    return render_v2(output, call.form, Wish(*call.wish), specs)
