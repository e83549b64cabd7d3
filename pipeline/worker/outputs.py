"""Outputs: what becomes of a request's output or error: the response, another Op's input, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from client.protos.pipeline_service_pb2 import Response
from pipeline.dialects.answer_form import AnswerForm, V1Wish, Wish
from pipeline.dialects.key_value.answers import render, render_message
from pipeline.dialects.kserve_v1.v1_answers import render_v1
from pipeline.dialects.kserve_v2.v2_answers import render_v2
from pipeline.errors import HookFailed, ServingError, described
from pipeline.messages.frames import Outcome, stow
from pipeline.messages.values import NotEncodable, Part, encode
from pipeline.models.tensor_spec import TensorSpec
from pipeline.paddle_serving.packages import outputs_of
from pipeline.worker.call import Call
from pipeline.worker.hooks import Hooks


class Outputs:
    """Makes the rows of replies.

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

    def row(self, call: Call, tail: list[Part]) -> list[Any]:
        """How a call is settled: [id, Outcome, stowed parts] or [id, ERROR, why]; adds to `tail`."""
        if call.error is None:
            try:
                return self._settle(call, tail)
            except ServingError as exc:
                call.error = exc
            except BaseException as exc:  # an answer's own __repr__, say: it must not take the batch along
                call.error = self._hooks.failure(exc, "the answer's printing", call.request)
        return [call.id, Outcome.ERROR, *described(call.error)]

    def _settle(self, call: Call, tail: list[Part]) -> list[Any]:
        output = call.output
        if call.direct:
            parts = _as_tensors(call, output, self._fetches)
            return [call.id, Outcome.ANSWER, stow(parts, tail)]
        if self._hooks.jumps and self._hooks.jump(call.own or self._hooks.op, call.request, output):
            return [call.id, Outcome.JUMP, stow(self._encoded(output), tail)]
        if self._answers:
            return [call.id, Outcome.ANSWER, stow(self._rendered(call), tail)]
        if self._hooks.unpacks:
            log_id = call.request.log_id.to_bytes(8, "little", signed=True)
            return [call.id, Outcome.INPUTS, stow([log_id, *self._encoded(output)], tail)]
        return [call.id, Outcome.VALUE, stow(self._encoded(output), tail)]

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
