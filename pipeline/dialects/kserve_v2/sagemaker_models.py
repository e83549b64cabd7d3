"""FRONT PROCESS: models of a multi-model endpoint, which SageMaker loads and unloads by name."""

from __future__ import annotations

from typing import Any

from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.dialects.triton_extensions.repository_api import ModelControl

CONFLICT = 409


class MultiModel:
    """Models that SageMaker has loaded from folders outside the model repository, by name."""

    def __init__(self, control: ModelControl) -> None:
        self._control = control
        self._urls: dict[str, str] = {}

    def list_models(self) -> dict[str, Any]:
        """Return the JSON document of `GET /models`."""
        return {"models": [self.describe_model(name) for name in sorted(self._urls)]}

    def describe_model(self, name: str) -> dict[str, str]:
        """Return the JSON document of `GET /models/NAME`. Raises KServeRefusal (404) for an unknown model."""
        if name not in self._urls:
            raise KServeRefusal(f"model '{name}' is not loaded", "NOT_FOUND")
        return {"modelName": name, "modelUrl": self._urls[name]}

    async def add_model(self, body: bytes) -> None:
        """Load the model that a `POST /models` names. Raises KServeRefusal (409) if it is already loaded."""
        document = json_fields.parse_json(body)
        fields = document if isinstance(document, dict) else {}
        name, url = fields.get("model_name"), fields.get("url")
        if not isinstance(name, str) or not isinstance(url, str):
            raise KServeRefusal('the body of POST /models is {"model_name": NAME, "url": FOLDER}')
        if name in self._urls:
            error = KServeRefusal(f"model '{name}' is loaded", "ALREADY_EXISTS")
            error.http_status = CONFLICT
            raise error
        self._control.register(name, url)
        self._urls[name] = url
        try:
            await self._control.load(name, {})
        except BaseException:
            self._forget(name)
            raise

    async def remove_model(self, name: str) -> None:
        """Unload the model of a `DELETE /models/NAME`. Raises KServeRefusal (404) for an unknown model."""
        self.describe_model(name)
        await self._control.unload(name, {})
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._urls.pop(name, None)
        self._control.unregister(name)
