"""What the recorded server had been told before a case: regions of shared memory, trace and log settings."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.service_process import ServiceProcess

_STATEFUL = ("shm", "g.shm", "log.", "g.log", "trace")
_WITH_REGIONS = {
    "g.shm.register_dup",
    "g.shm.unregister_all",
    "shm.infer",
    "shm.infer_small_out",
    "shm.infer_unknown_region",
    "shm.register_too_big",
    "shm.status2",
    "shm.status_region",
    "shm.unregister_all",
}
_LOG_SETTINGS = {"log.set_unknown": {"log_verbose_level": 1, "log_format": "ISO8601"}}
_DEFAULT_LOG_SETTINGS = {"log_verbose_level": 0, "log_format": "default"}
_RECORDED_KEYS = "/wirecap"
OWN_KEYS = f"/{os.getpid() % 10**7:07d}"  # as long: this run's files must not be another's


def of_this_run(row: dict[str, Any]) -> dict[str, Any]:
    """The recording, its files in /dev/shm named for this run."""
    own: dict[str, Any] = json.loads(json.dumps(row).replace(_RECORDED_KEYS, OWN_KEYS))
    if row["id"] == "params.echo":
        answer = json.loads(own["response"]["body"]["text"])
        data = answer["outputs"][0]["data"]
        data[0] = _of_no_sequence(data[0])
        own["response"]["body"]["text"] = json.dumps(answer)
    elif row["id"] == "g.params":
        raw = own["response"]["message"]["raw_output_contents"]
        told = _of_no_sequence(base64.b64decode(raw[0])[4:].decode()).encode()
        raw[0] = base64.b64encode(len(told).to_bytes(4, "little") + told).decode()
    return own


def _of_no_sequence(told: str) -> str:
    """What the model `params` told of its request, without its sequence, names of outputs and trace."""
    request_id, _correlation_id, _flags, timeout_us, parameters, *_ = told.split("|")
    return f"{request_id}|{timeout_us}|{json.dumps(json.loads(parameters), sort_keys=True)}"


@contextlib.contextmanager
def told_before(case: str, service: ServiceProcess) -> Iterator[None]:
    """Brings the service into the state that the case was recorded in. Others need none."""
    if not case.startswith(_STATEFUL):
        yield
        return
    _post(service, "/v2/logging", _LOG_SETTINGS.get(case, _DEFAULT_LOG_SETTINGS))
    _post(service, "/v2/systemsharedmemory/unregister", {})
    keys = {f"r_{kind}": f"{OWN_KEYS}_{kind}" for kind in ("in", "out")}
    files = [Path(f"/dev/shm{key}") for key in keys.values()]
    for file in files:
        file.write_bytes(bytes(128))
    try:
        for name, key in keys.items():
            if case in _WITH_REGIONS:
                region = {"key": key, "offset": 0, "byte_size": 128}
                _post(service, f"/v2/systemsharedmemory/region/{name}/register", region)
        yield
    finally:
        for file in files:
            file.unlink()


def _post(service: ServiceProcess, path: str, document: dict[str, Any]) -> None:
    answer = service.http(path, json.dumps(document))
    assert answer.status == 200, answer
