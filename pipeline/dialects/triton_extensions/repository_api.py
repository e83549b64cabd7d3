"""FRONT PROCESS: Triton's model repository extension: index, loading and unloading; requests for upgrades."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import Message

from pipeline.api.model_names import get_public_name
from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.models import KServeModel, KServeModels
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.errors import ConfigError, get_error_text
from pipeline.front.repository import LoadFailed, ModelLoader, NotPolled, Repository
from pipeline.front.upgrades.answers import Tolerances
from pipeline.front.upgrades.shift import CanarySettings
from pipeline.front.upgrades.upgrade import UpgradeSettings
from pipeline.triton.override import FILE, find_model_folder, parse_override
from pipeline.triton.repository import DUPLICATE

MAX_REQUESTS = 10_000_000
MAX_MINUTES = 7 * 24 * 60.0
_UPGRADE_LIMITS = {  # of numbers in a request, lowest and highest
    "requests": (0, MAX_REQUESTS),
    "minutes": (0, MAX_MINUTES),
    "tolerance": (0, 0.99),
    "score_tolerance": (0, 1),
    "tensor_tolerance": (0, 1e6),
    "timeout_s": (0.1, 3600),
    "step_requests": (1, MAX_REQUESTS),
    "error_limit": (0, 0.99),
    "latency_limit": (1, 1000),
}
_WHOLE_NUMBERS = ("requests", "step_requests")
_UPGRADE_MEMBERS = ("version", "share_cpu", "canary", *_UPGRADE_LIMITS)
MAX_CANARY_STEPS = 20
MIN_CANARY_SHARE = 0.01  # percent


def build_index(models: KServeModels, *, ready_only: bool) -> list[dict[str, Any]]:
    """Return Triton's repository index: name, version, state and reason of each model.

    ready_only: whether models in other states than READY are omitted.
    """
    rows = [row for model in models.all() for row in _list_entries(models, model)]
    rows += [
        _row(get_public_name(name), version, "UNAVAILABLE", why)
        for name, (version, why) in models.unavailable().items()
    ]
    names = {row["name"] for row in rows}
    for name in models.repository_names():
        if models.is_ambiguous(name) and not models.versions(name):
            rows = [row for row in rows if row["name"] != name]
            rows.append({"name": name, "state": "UNAVAILABLE", "reason": DUPLICATE})
        elif name not in names:
            rows.append({"name": name})
    for name in {row["name"] for row in rows}:
        if versions := models.loading_versions(name):
            rows = [row for row in rows if row["name"] != name]
            rows += [_row(name, version, "LOADING", "") for version in versions]
    rows.sort(key=lambda row: str(row["name"]))
    return [row for row in rows if row.get("state") == "READY"] if ready_only else rows


def _list_entries(models: KServeModels, model: KServeModel) -> Iterator[dict[str, Any]]:
    """Yield the index entries of a model: its served version, and another version whose load failed."""
    standing, failure = models.standing(model), models.failure(model)
    yield _row(model.name, model.version, *standing)
    if failure is not None and failure.version and failure.version != model.version:
        yield _row(model.name, failure.version, "UNAVAILABLE", failure.message)


def _row(name: str, version: str, state: str, reason: str) -> dict[str, Any]:
    row = {"name": name, "version": version, "state": state}
    return {**row, "reason": reason} if reason else row


def parse_ready_only(body: bytes) -> bool:
    """Return whether the body of an index request has `"ready": true`. Raises KServeRefusal."""
    document = json_fields.parse_json(body) if body.strip() else {}
    ready_only = document.get("ready", False) if isinstance(document, dict) else False
    if not isinstance(ready_only, bool):
        raise KServeRefusal("Unable to parse 'ready': attempt to access JSON non-boolean as boolean")
    return ready_only


def parse_parameters(body: bytes) -> Mapping[str, Any]:
    """Return the parameters in the body of a load or unload request over HTTP; empty without a body.

    Raises KServeRefusal for invalid JSON, and for parameters of another type than an object.
    """
    document = json_fields.parse_json(body) if body.strip() else {}
    return json_fields.get_parameters(document) if isinstance(document, dict) else {}


class ModelControl:
    """Loads and unloads models on request of clients, if `v2.model_control` is "explicit"."""

    def __init__(self, models: KServeModels, repository: Repository, *, explicit: bool) -> None:
        self._models = models
        self._repository = repository
        self._explicit = explicit

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model from its current files, or reload a loaded model. Returns when the load has ended.

        parameters: parameters of the request, which may replace config and files of a model in a repository.
        If the load fails, raises KServeRefusal and keeps the previous state.
        """
        self.check_allowed()
        if isinstance(self._repository, ModelLoader):
            await self._load_from(self._repository, name, parameters)
            return
        for parameter in parameters:
            _refuse_override(name, parameter)
        ops = self._models.list_ops(name)
        if not ops:
            raise KServeRefusal(f"failed to load '{name}', failed to poll from model repository", "INTERNAL")
        try:
            await self._repository.load(ops)
        except LoadFailed as exc:
            where = f"version {exc.version} is at UNAVAILABLE state: " if exc.version else ""
            raise KServeRefusal(f"load failed for model '{name}': {where}{exc.message};\n") from exc

    async def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Unload a model. Returns when admitted requests are answered and the workers have stopped.

        An unknown model counts as unloaded. In a service without a repository, parameters have no effect.
        Raises KServeRefusal.
        """
        self.check_allowed()
        if isinstance(self._repository, ModelLoader):
            dependents = parameters.get("unload_dependents")  # a message of the type ModelRepositoryParameter
            dependents = getattr(dependents, "bool_param", dependents)
            await self._repository.unload_model(name, dependents=dependents is True)
            return
        await self._repository.unload_ops(self._models.list_ops(name))

    def register(self, name: str, path: str) -> None:
        """Register the folder at this path: later loads of the model read from it. Raises KServeRefusal."""
        self.check_allowed()
        if not isinstance(self._repository, ModelLoader):
            raise KServeRefusal("a service of a script has no model repository", "UNIMPLEMENTED")
        try:
            self._repository.register(name, find_model_folder(Path(path)))
        except (ConfigError, OSError) as exc:
            raise KServeRefusal(get_error_text(exc)) from exc

    def unregister(self, name: str) -> None:
        """Forget the folder of a registered model."""
        if isinstance(self._repository, ModelLoader):
            self._repository.unregister(name)

    async def _load_from(self, loader: ModelLoader, name: str, parameters: Mapping[str, Any]) -> None:
        try:
            override = parse_override(
                name, {key: _load_parameter(key, value) for key, value in parameters.items()}
            )
            await loader.load_model(name, override)
        except NotPolled as exc:
            raise KServeRefusal(
                f"failed to load '{name}', failed to poll from model repository", "INTERNAL"
            ) from exc
        except LoadFailed as exc:
            if exc.version:
                reason = f"version {exc.version} is at UNAVAILABLE state: {exc.message};\n"
            else:
                reason = f"{exc.message}\n"
            raise KServeRefusal(f"load failed for model '{name}': {reason}") from exc
        except ConfigError as exc:
            raise KServeRefusal(exc.message) from exc

    def check_allowed(self) -> None:
        """Raise KServeRefusal (HTTP 503) unless clients may load and unload models."""
        if not self._explicit:
            raise KServeRefusal(
                "explicit model load / unload is not allowed if polling is enabled", "UNAVAILABLE"
            )


def _load_parameter(name: str, value: Any) -> Any:
    """Return the value of the load parameter `config` or of a file parameter, from HTTP or gRPC.

    Raises KServeRefusal (HTTP 400) for an unknown parameter, or a value of another type.
    """
    is_file = name.startswith(FILE)
    if name != "config" and not is_file:
        raise KServeRefusal(f"unrecognized load parameter '{name[:100]}'.")
    if not isinstance(value, Message):
        return json_fields.check_text(value)
    expected = "bytes_param" if is_file else "string_param"
    if value.WhichOneof("parameter_choice") != expected:
        raise KServeRefusal(f"invalid value type for load parameter '{name[:100]}', expected {expected}.")
    return getattr(value, expected)


def _refuse_override(model: str, parameter: str) -> None:
    """Raise KServeRefusal for a load parameter, because the service has no model repository.

    Without a repository, clients can't replace the config and files of a model.
    """
    if parameter == "config" or parameter.startswith("file:"):
        raise KServeRefusal(
            f"failed to load '{model}', parameter '{parameter[:100]}' is not supported: the model's "
            "configuration is config.yml's, its files are those on disk",
            "UNIMPLEMENTED",
        )
    raise KServeRefusal(f"unrecognized load parameter '{parameter[:100]}' for model '{model}'")


class UpgradeRequest(NamedTuple):
    """A client's request to upgrade a model: the version on disk, and the settings of the comparison."""

    version: str
    settings: UpgradeSettings


def parse_upgrade(body: bytes) -> UpgradeRequest:
    """Parse the JSON body of a request for an upgrade. Raises KServeRefusal (HTTP 400) with the member."""
    document = json_fields.parse_json(body) if body.strip() else {}
    if not isinstance(document, dict):
        raise KServeRefusal('the body of an upgrade is a JSON object, such as {"version": "2"}')
    unknown = [name for name in document if name not in _UPGRADE_MEMBERS]
    if unknown:
        raise KServeRefusal(
            f"an upgrade has no member {unknown[0][:100]!r}, only {', '.join(_UPGRADE_MEMBERS)}"
        )
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, str | int):
        raise KServeRefusal('version is missing or no number: write the version on disk, such as "2"')
    numbers = {name: _check_number(name, document[name]) for name in _UPGRADE_LIMITS if name in document}
    minutes = numbers.get("minutes", 0.0)
    requests = int(numbers.get("requests", 0 if minutes else UpgradeSettings.requests))
    if not requests and not minutes:
        raise KServeRefusal("requests and minutes are both 0: set either, such as requests: 2000")
    share_cpu = document.get("share_cpu", False)
    if not isinstance(share_cpu, bool):
        raise KServeRefusal(f"share_cpu is {str(share_cpu)[:100]!r}: write true or false")
    defaults = Tolerances()
    tolerances = Tolerances(
        numbers.get("score_tolerance", defaults.scores), numbers.get("tensor_tolerance", defaults.tensors)
    )
    return UpgradeRequest(
        str(version),
        UpgradeSettings(
            requests,
            minutes,
            numbers.get("tolerance", UpgradeSettings.tolerance),
            tolerances,
            numbers.get("timeout_s", UpgradeSettings.timeout_s),
            share_cpu,
            CanarySettings(
                _parse_shares(document.get("canary", [])),
                int(numbers.get("step_requests", CanarySettings.requests)),
                numbers.get("error_limit", CanarySettings.error_limit),
                numbers.get("latency_limit", CanarySettings.latency_limit),
            ),
        ),
    )


def _parse_shares(value: Any) -> tuple[float, ...]:
    """Return the shares of a canary's steps, in percent. Raises KServeRefusal."""
    shares = value if isinstance(value, list) else [None]
    is_valid = len(shares) <= MAX_CANARY_STEPS and all(
        isinstance(share, int | float) and not isinstance(share, bool) and MIN_CANARY_SHARE <= share <= 100
        for share in shares
    )
    if not is_valid or shares != sorted(set(shares)):
        raise KServeRefusal(
            f"canary is {str(value)[:100]!r}: write at most {MAX_CANARY_STEPS} rising shares in percent, "
            f"from {MIN_CANARY_SHARE:g} to 100, such as [1, 10, 50, 100]"
        )
    return tuple(map(float, shares))


def _check_number(name: str, value: Any) -> float:
    """Return `value` if it is a number within the limits of `name`. Otherwise raise KServeRefusal."""
    lowest, highest = _UPGRADE_LIMITS[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not lowest <= value <= highest:
        raise KServeRefusal(f"{name} is {str(value)[:100]!r}: write a number from {lowest:g} to {highest:g}")
    if name in _WHOLE_NUMBERS and value != int(value):
        raise KServeRefusal(f"{name} is {value!r}: write a whole number")
    return float(value)
