"""The gRPC methods of KServe v2's shared memory, trace settings and log settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from client.protos import kserve_v2_pb2 as messages
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.dialects.kserve_v2.server import V2Server
from pipeline.dialects.kserve_v2.trace_settings import LOG_FORMATS

RpcPage = tuple[Any, Callable[[Any], Message]]  # the request's message, and what answers it
SHARED_MEMORY_METHODS = tuple(
    f"{kind}SharedMemory{action}"
    for kind in ("System", "Cuda")
    for action in ("Status", "Register", "Unregister")
)
_FIELD_OF = {bool: ("bool_param", "boolean"), int: ("uint32_param", "int32"), str: ("string_param", "string")}


class RpcExtensions:
    """Answers the methods outside of models and repository."""

    def __init__(self, server: V2Server) -> None:
        self._server = server

    def settings_pages(self) -> dict[str, RpcPage]:
        """What answers the methods of trace and log settings, by name."""
        return {
            "TraceSetting": (messages.TraceSettingRequest, self._trace_setting),
            "LogSettings": (messages.LogSettingsRequest, self._log_settings),
        }

    def shared_memory_pages(self) -> dict[str, RpcPage]:
        """What answers the methods of shared memory, by name; for clients that SharedMemory admits."""
        return {
            "SystemSharedMemoryStatus": (messages.SystemSharedMemoryStatusRequest, self._status),
            "SystemSharedMemoryRegister": (messages.SystemSharedMemoryRegisterRequest, self._register),
            "SystemSharedMemoryUnregister": (messages.SystemSharedMemoryUnregisterRequest, self._unregister),
            "CudaSharedMemoryStatus": (messages.CudaSharedMemoryStatusRequest, self._cuda_status),
            "CudaSharedMemoryRegister": (messages.CudaSharedMemoryRegisterRequest, self._cuda_register),
            "CudaSharedMemoryUnregister": (
                messages.CudaSharedMemoryUnregisterRequest,
                lambda _: messages.CudaSharedMemoryUnregisterResponse(),
            ),
        }

    def _status(self, asked: messages.SystemSharedMemoryStatusRequest) -> Message:
        regions = {region["name"]: region for region in self._server.memory.status(asked.name)}
        return ParseDict({"regions": regions}, messages.SystemSharedMemoryStatusResponse())

    def _register(self, asked: messages.SystemSharedMemoryRegisterRequest) -> Message:
        self._server.memory.register(asked.name, asked.key, asked.offset, asked.byte_size)
        return messages.SystemSharedMemoryRegisterResponse()

    def _unregister(self, asked: messages.SystemSharedMemoryUnregisterRequest) -> Message:
        self._server.memory.unregister(asked.name)
        return messages.SystemSharedMemoryUnregisterResponse()

    def _cuda_status(self, asked: messages.CudaSharedMemoryStatusRequest) -> Message:
        self._server.memory.cuda_status(asked.name)
        return messages.CudaSharedMemoryStatusResponse()

    def _cuda_register(self, asked: messages.CudaSharedMemoryRegisterRequest) -> Message:
        self._server.memory.refuse_cuda(asked.name)
        return messages.CudaSharedMemoryRegisterResponse()

    def _trace_setting(self, asked: messages.TraceSettingRequest) -> Message:
        model = asked.model_name
        if model and not self._server.models.is_ready(model):
            raise KServeRefusal(f"Request for unknown model : {model}")
        if asked.settings:
            given = {name: list(setting.value) or None for name, setting in asked.settings.items()}
            self._server.trace.update(given, model)
        answer = messages.TraceSettingResponse()
        for name, value in self._server.trace.told(model).items():
            answer.settings[name].value.extend(value if isinstance(value, list) else [value])
        return answer

    def _log_settings(self, asked: messages.LogSettingsRequest) -> Message:
        kinds = self._server.logging.kinds()
        given: dict[str, Any] = {}
        for name, setting in asked.settings.items():
            if name not in kinds:
                continue
            field, told = _FIELD_OF[kinds[name]]
            if setting.WhichOneof("parameter_choice") != field and name != "log_file":
                raise KServeRefusal(f"expect {told} for '{name}'")
            given[name] = getattr(setting, field)
        if given.get("log_format", LOG_FORMATS[0]) not in LOG_FORMATS:
            raise KServeRefusal(f"invalid argument for log_format, got: {given['log_format'][:100]}")
        self._server.logging.update(given)
        answer = messages.LogSettingsResponse()
        for name, value in self._server.logging.told().items():
            setattr(answer.settings[name], _FIELD_OF[type(value)][0], value)
        return answer
