"""Decoupled models for tests, and clients of ModelStreamInfer that read their answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import grpc

from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelStreamInferResponse
from tests.support.service_process import PATIENCE_S
from tests.support.triton_repository import write_model

REPEAT = "repeat"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_TENSORS = """
backend: "python"
input { name: "X" data_type: TYPE_STRING dims: 1 }
output { name: "Y" data_type: TYPE_STRING dims: -1 }
"""
_DECOUPLED = f"{_TENSORS}model_transaction_policy {{ decoupled: true }}\n"
_RESPONSE = """
import os
import signal
import threading
import time
from pathlib import Path

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([text], dtype=object))])


def argument(request):
    name, _, rest = request.inputs()[0].as_numpy()[0].decode().partition(" ")
    return name, rest
"""
# Does with its sender what the input says, in `execute` or in a thread of its own.
_TELLS = f"""{_RESPONSE}
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            name, rest = argument(request)
            getattr(self, name)(request, rest)

    def count(self, request, rest):
        sender = request.get_response_sender()
        assert sender is request.get_response_sender()
        for number in range(int(rest)):
            sender.send(response(str(number)))
        sender.send(flags=FINAL)

    def last(self, request, rest):
        request.get_response_sender().send(response(rest), flags=FINAL)

    def fail_second(self, request, rest):
        sender = request.get_response_sender()
        sender.send(response("0"))
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("the second fails")))
        sender.send(response("2"), FINAL)

    def in_thread(self, request, rest):
        threading.Thread(target=self.count, args=(request, rest)).start()

    def raise_after(self, request, rest):
        sender = request.get_response_sender()
        for number in range(int(rest)):
            sender.send(response(str(number)))
        raise ValueError("no more of them")

    def late(self, request, rest):
        sender = request.get_response_sender()
        sender.send(response("0"), FINAL)
        try:
            sender.send(response("1"))
        except pb_utils.TritonModelException as exc:
            Path(rest).write_text(str(exc))

    def wrong(self, request, rest):
        sender = request.get_response_sender()
        errors = []
        for arguments in ((), (response("0"), 7), ("text",)):
            try:
                sender.send(*arguments)
            except pb_utils.TritonModelException as exc:
                errors.append(str(exc))
        sender.send(response("; ".join(errors)), FINAL)

    def drop(self, request, rest):
        sender = request.get_response_sender()
        sender.send(response("0"))

    def ignore(self, request, rest):
        pass

    def gated(self, request, rest):
        sender = request.get_response_sender()
        sender.send(response("0"))
        threading.Thread(target=self.wait, args=(request, sender, Path(rest))).start()

    def wait(self, request, sender, gate):
        while not gate.exists() and not request.is_cancelled():
            time.sleep(0.01)
        Path(f"{{gate}}.cancelled").write_text(str(sender.is_cancelled()))
        sender.send(response("1"), FINAL)

    def die_after(self, request, rest):
        sender = request.get_response_sender()
        sent, _, path = rest.partition(" ")
        if path and Path(path).exists():
            sender.send(response(f"after a death"), FINAL)
            return
        for number in range(int(sent)):
            sender.send(response(str(number)))
        if path:
            Path(path).touch()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        self.kept = sender

    def flood(self, request, rest):
        sender = request.get_response_sender()
        for _ in range(int(rest)):
            sender.send(response("x" * 100_000))
        sender.send(flags=FINAL)
"""
_RETURNS = """
class TritonPythonModel:
    def execute(self, requests):
        return [None for _ in requests]
"""
_SINGLE = f"""{_RESPONSE}
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request, *argument(request)) for request in requests]

    def answer(self, request, name, rest):
        if name == "return":
            return response(rest)
        sender = request.get_response_sender()
        if name == "thread":
            threading.Thread(target=sender.send, args=(response(rest), FINAL)).start()
        elif name == "twice":
            sender.send(response(rest))
            sender.send(response(rest))
        elif name == "none":
            sender.send(flags=FINAL)
        elif name == "wait":
            Path(f"{{rest}}.waiting").touch()
            while not request.is_cancelled():
                time.sleep(0.01)
            Path(rest).touch()
            sender.send(response(rest), FINAL)
"""
_COROUTINE = f"""{_RESPONSE}
import asyncio


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        _, rest = argument(request)
        sender = request.get_response_sender()
        for number in range(int(rest)):
            await asyncio.sleep(0)
            sender.send(response(str(number)))
        if rest == "2":
            raise ValueError("two are too few")
        sender.send(flags=FINAL)
"""
_REPEAT = """
import threading


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request, request.get_response_sender())).start()

    def answer(self, request, sender):
        (numbers,) = (tensor.as_numpy() for tensor in request.inputs())
        for number in self.list_answers(numbers.tolist()):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def list_answers(self, numbers):
        return numbers
"""
_NUMBERS = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: -1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
model_transaction_policy { decoupled: true }
"""


# Asks `tells` and joins all of its answers; the input says how.
_ASKS = f"""{_RESPONSE}
import asyncio


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request, *argument(request)) for request in requests]

    async def answer(self, request, way, rest):
        asked = pb_utils.InferenceRequest(
            model_name="tells", requested_output_names=["Y"],
            inputs=[pb_utils.Tensor("X", np.array([rest], object))],
        )
        if way == "exec":
            answers = asked.exec(decoupled=True)
        elif way == "async_exec":
            answers, _ = await asyncio.gather(asked.async_exec(decoupled=True), asyncio.sleep(0))
        elif way == "cancel":
            answers = asked.exec(decoupled=True)
            first = next(answers)
            answers.cancel()
            return response(str([first, *answers][-1].error().code()))
        else:
            answers = [asked.exec()]
        texts = [a.error().message() if a.has_error() else str(a.output_tensors()[0].as_numpy()[0], "utf-8")
                 for a in answers]
        return response(" ".join(texts))
"""
_UPPER = f"""{_RESPONSE}
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy()[0].decode()) for request in requests]

    def answer(self, text):
        if text == "3":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no threes"))
        return response(f"<{{text}}>")
"""
_ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_STRING dims: 1 }
output { name: "Y" data_type: TYPE_STRING dims: -1 }
"""


def _write_ensembles(folder: Path) -> None:
    """Ensembles with a decoupled step: first, last, and between others."""
    write_model(folder, "upper", _TENSORS.replace("dims: 1", "dims: -1"), _UPPER)
    steps = {
        "first": ["tells", "upper"],
        "last": ["single", "tells"],
        "twice": ["tells", "counts_down", "upper"],
    }
    write_model(folder, "counts_down", _DECOUPLED.replace("dims: 1", "dims: -1"), _COUNTS_DOWN)
    for name, models in steps.items():
        tensors = ["X", *(f"t{number}" for number in range(1, len(models))), "Y"]
        scheduling = "".join(
            f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{source}" }} '
            f'output_map {{ key: "Y" value: "{result}" }} }}\n'
            for model, source, result in zip(models, tensors, tensors[1:], strict=False)
        )
        limit = "max_inflight_requests: 2\n" if name == "first" else ""
        write_model(
            folder, f"ensemble_{name}", f"{_ENSEMBLE}ensemble_scheduling {{\n{scheduling}{limit}}}\n"
        ).joinpath("1").mkdir(exist_ok=True)


_COUNTS_DOWN = f"""{_RESPONSE}
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = request.inputs()[0].as_numpy()[0].decode()
            for number in range(int(text)):
                sender.send(response(f"{{text}}.{{number}}"))
            sender.send(flags=FINAL)
"""


def write_repeat(folder: Path) -> Path:
    """A repository of the decoupled model that answers each of the numbers it gets."""
    write_model(folder, REPEAT, _NUMBERS, _REPEAT)
    return folder


def write_tells(folder: Path) -> Path:
    """A repository of the decoupled model that does what its input says."""
    write_model(folder, "tells", _DECOUPLED, _TELLS)
    return folder


def write_streaming_models(folder: Path) -> Path:
    """A repository of decoupled models, and of one with a response sender that is not decoupled."""
    write_tells(folder)
    write_model(folder, "returns", _DECOUPLED, _RETURNS.replace("None for", "1 for"))
    write_model(folder, "single", f"{_TENSORS}instance_group {{ count: 2 }}\n", _SINGLE)
    write_model(folder, "coroutine", _DECOUPLED, _COROUTINE)
    write_repeat(folder)
    write_model(folder, "square", _NUMBERS, _REPEAT.replace("return numbers", "return numbers * numbers[0]"))
    write_model(folder, "asks", _TENSORS, _ASKS)
    _write_ensembles(folder)
    return folder


def request(model: str, text: str, request_id: str = "", *, empty_final: bool = False) -> ModelInferRequest:
    """A request to a model of `write_streaming_models` that does what a text says."""
    message = ModelInferRequest(model_name=model, id=request_id)
    message.inputs.add(name="X", datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
    if empty_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    return message


def numbers_request(model: str, numbers: list[int], request_id: str = "") -> ModelInferRequest:
    """A request to `repeat` or `square`."""
    message = ModelInferRequest(model_name=model, id=request_id)
    message.inputs.add(name="IN", datatype="INT32", shape=[len(numbers)]).contents.int_contents.extend(
        numbers
    )
    return message


def open_stream(channel: grpc.Channel, requests: Iterable[ModelInferRequest]) -> grpc.Call:
    """A ModelStreamInfer call with these requests. Iterate over it, or cancel it."""
    call: grpc.Call = channel.stream_stream(
        STREAM, ModelInferRequest.SerializeToString, ModelStreamInferResponse.FromString
    )(iter(requests), timeout=PATIENCE_S)
    return call


def infer(channel: grpc.Channel, *requests: ModelInferRequest) -> list[ModelStreamInferResponse]:
    """All answers to these requests, sent in one call."""
    return list(open_stream(channel, requests))


def get_texts(answers: Iterable[ModelStreamInferResponse]) -> list[str]:
    """The text in each answer, or its error."""
    return list(map(get_text, answers))


def get_text(answer: ModelStreamInferResponse) -> str:
    if answer.error_message:
        return answer.error_message
    return "".join(raw[4:].decode() for raw in answer.infer_response.raw_output_contents)


def list_final(answers: Iterable[ModelStreamInferResponse]) -> Iterator[bool]:
    """Whether each answer says that it is the last to its request."""
    return (a.infer_response.parameters["triton_final_response"].bool_param for a in answers)
