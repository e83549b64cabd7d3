"""The model repository over KServe v2: which models there are, and orders to load and unload them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import Message

from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.models import KServeModel, KServeModels
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.errors import ConfigError
from pipeline.front.model_loader import ModelLoader, NotPolled
from pipeline.front.repository import LoadFailed, Repository
from pipeline.triton.override import FILE, parse_override


def index(models: KServeModels, *, ready_alone: bool) -> list[dict[str, Any]]:
    """Every model with its state, or those that are ready alone."""
    rows = [row for model in models.all() for row in _rows(models, model)]
    rows += [_row(name, version, "UNAVAILABLE", why) for name, (version, why) in models.unavailable().items()]
    rows += [{"name": name} for name in models.unread() if name not in {row["name"] for row in rows}]
    rows.sort(key=lambda row: str(row["name"]))
    return [row for row in rows if row.get("state") == "READY"] if ready_alone else rows


def _rows(models: KServeModels, model: KServeModel) -> Iterator[dict[str, Any]]:
    """The version that is served, and another whose loading failed."""
    standing, failure = models.standing(model), models.failure(model)
    yield _row(model.name, model.version, *standing)
    if failure is not None and failure.version and failure.version != model.version:
        yield _row(model.name, failure.version, "UNAVAILABLE", failure.message)


def _row(name: str, version: str, state: str, reason: str) -> dict[str, Any]:
    row = {"name": name, "version": version, "state": state}
    return {**row, "reason": reason} if reason else row


def asks_for_ready_alone(body: bytes) -> bool:
    """Whether an HTTP request for the index wants the ready models alone. Raises KServeRefusal."""
    document = json_fields.parse(body) if body.strip() else {}
    return isinstance(document, dict) and json_fields.boolean(document.get("ready", False), "ready")


def parse_parameters(body: bytes) -> Mapping[str, Any]:
    """The parameters of a load or unload over HTTP. Raises KServeRefusal for a body that can't be read."""
    document = json_fields.parse(body) if body.strip() else {}
    return json_fields.get_parameters(document) if isinstance(document, dict) else {}


class Control:
    """Takes the orders of clients, where `v2.model_control` lets it."""

    def __init__(self, models: KServeModels, repository: Repository, *, explicit: bool) -> None:
        self._models = models
        self._repository = repository
        self._explicit = explicit

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Serve what is on disk now; returns when it is. Raises KServeRefusal, and all is as before."""
        self._check_allowed()
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
        """Serve the model no more; returns when what was admitted is answered and the workers are gone.

        A name that is not there is as good as unloaded. No parameter changes anything: a service is unloaded
        with its Ops, and no model has another's dependents. Raises KServeRefusal.
        """
        self._check_allowed()
        if isinstance(self._repository, ModelLoader):
            dependents = _flag(parameters, "unload_dependents")
            await self._repository.unload_model(name, dependents=dependents)
            return
        await self._repository.unload(self._models.list_ops(name))

    async def _load_from(self, loader: ModelLoader, name: str, parameters: Mapping[str, Any]) -> None:
        try:
            override = parse_override(name, {key: _loaded(key, value) for key, value in parameters.items()})
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

    def _check_allowed(self) -> None:
        if not self._explicit:
            raise KServeRefusal(
                "explicit model load / unload is not allowed if polling is enabled", "UNAVAILABLE"
            )


def _loaded(name: str, value: Any) -> Any:
    """The value of a load's parameter. Raises KServeRefusal for one that is none, or of another type."""
    is_file = name.startswith(FILE)
    if name != "config" and not is_file:
        raise KServeRefusal(f"unrecognized load parameter '{name[:100]}'.")
    if not isinstance(value, Message):
        return json_fields.as_text(value)
    expected = "bytes_param" if is_file else "string_param"
    if value.WhichOneof("parameter_choice") != expected:
        raise KServeRefusal(f"invalid value type for load parameter '{name[:100]}', expected {expected}.")
    return getattr(value, expected)


def _plain(value: Any) -> Any:
    """A parameter of either protocol as a plain value."""
    if isinstance(value, Message):
        choice = value.WhichOneof("parameter_choice")
        return None if choice is None else getattr(value, choice)
    return value


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    return _plain(parameters.get(name)) is True


def _refuse_override(model: str, parameter: str) -> None:
    """Raise KServeRefusal: the files on the server's disk decide what is served, not its clients."""
    if parameter == "config" or parameter.startswith("file:"):
        raise KServeRefusal(
            f"failed to load '{model}', parameter '{parameter[:100]}' is not supported: the model's "
            "configuration is config.yml's, its files are those on disk",
            "UNIMPLEMENTED",
        )
    raise KServeRefusal(f"unrecognized load parameter '{parameter[:100]}' for model '{model}'")
