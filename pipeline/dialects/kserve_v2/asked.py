"""Asked: an inference request of KServe v2 as either door has read it, and the scheduler's Request of it."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from pipeline.api.request_options import RequestOptions
from pipeline.dialects.kserve.as_message import as_message
from pipeline.dialects.kserve.json_fields import sendable
from pipeline.dialects.kserve.models import KServeModel
from pipeline.dialects.kserve.parameters import checked_parameter
from pipeline.dialects.kserve.refusals import KServeRefusal, of_request
from pipeline.dialects.kserve.text_length import check_texts
from pipeline.dialects.kserve.unread import Written
from pipeline.dialects.kserve_v2.inputs import Given, add, checked
from pipeline.dialects.kserve_v2.shared_memory import Outputs, Span
from pipeline.dialects.kserve_v2.wish import WantedOutput, Wish
from pipeline.front.scheduler.request import Request
from pipeline.front.scheduler.scheduler import Scheduler

_ALLOWED = "triton_enable_empty_final_response"
_NOT_FOR_HOOKS = (_ALLOWED, "sequence_id", "sequence_start", "sequence_end")


class Asked(msgspec.Struct, eq=False):
    """inputs: by name, as written. outputs: those asked for, None for all. binary: how HTTP sends the others.

    priority: 1 is the highest, 0 none given. timeout_us: microseconds, 0 for none. parameters: for the hooks.
    spans: where outputs go in shared memory, by name. shared_bytes: of all inputs in shared memory.
    """

    request_id: str = ""
    inputs: dict[str, Given] = {}
    outputs: dict[str, WantedOutput] | None = None
    binary: bool = False
    priority: int = 0
    timeout_us: int = 0
    parameters: dict[str, Any] = {}
    spans: dict[str, Span] | None = None
    shared_bytes: int = 0

    def give_shared(self, name: str, datatype: str, shape: list[int], span: Span) -> None:
        """An input that lies in shared memory. Raises KServeRefusal for one that is there already."""
        self.shared_bytes += span.size
        add(self.inputs, Given(name, datatype, shape, span, Written.RAW), self.request_id)

    def want(self, wanted: WantedOutput, span: Span | None = None) -> None:
        """One more output. span: where it goes in shared memory; None where it is sent."""
        self.outputs = self.outputs or {}
        self.outputs[wanted.name] = wanted if span is None else wanted._replace(room=span.size)
        if span is not None:
            self.spans = {**(self.spans or {}), wanted.name: span}

    @property
    def timeout_s(self) -> float:
        return self.timeout_us / 1e6 if self.timeout_us else math.inf

    def request(self, model: KServeModel, form: str, scheduler: Scheduler) -> Request:
        """What the scheduler is given; `deadline` is for the door to set. Raises KServeRefusal."""
        limits = scheduler.app.config.limits
        if self.shared_bytes > limits.body_bytes:
            raise of_request(
                self.request_id,
                f"the inputs in shared memory have {self.shared_bytes} bytes; limits.body_bytes is "
                f"{limits.body_bytes}",
            )
        if len(self.inputs) > limits.tensors:
            raise of_request(
                self.request_id, f"{len(self.inputs)} inputs were given; limits.tensors is {limits.tensors}"
            )
        values, rows = checked(model, self.request_id, self.inputs, limits.tensor_rank)
        check_texts(values, limits)
        if model.takes_messages:
            values = as_message(model.name, values)
        signature = model.signature
        if self.outputs and signature.outputs:
            known = {spec.name for spec in signature.outputs}
            for name in self.outputs:
                if name not in known:
                    raise KServeRefusal(f"unexpected inference output '{name}' for model '{model.name}'")
        wish = Wish(
            model.name,
            self.request_id,
            self.binary,
            None if not self.outputs else [tuple(wanted) for wanted in self.outputs.values()],
            signature.max_batch_size > 0,
        )
        request = Request(model.name, "infer", values, form=form, wish=wish)
        request.model_version = model.version
        request.model = model.name
        if self.request_id or self.priority or self.timeout_us or self.parameters:
            request.options = RequestOptions(self.request_id, self.priority, self.timeout_us, self.parameters)
        request.rows = rows
        request.priority = max(0, self.priority - 1)  # none given counts as the highest
        if self.spans and self.outputs:
            spans = [self.spans[name] for name, wanted in self.outputs.items() if wanted.room is not None]
            request.finish = Outputs(spans)
        return request

    def take_parameter(self, name: str, value: Any) -> None:
        """One that the protocol gives no meaning. Raises KServeRefusal for Triton's names, wrong types."""
        if name in _NOT_FOR_HOOKS:
            return
        _refuse_reserved(name)
        self.parameters[sendable(name)] = checked_parameter(name, value)


def _refuse_reserved(name: str) -> None:
    if name.startswith("triton_"):
        raise KServeRefusal(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
            f"starting with 'triton_' are allowed: {_ALLOWED}"
        )
