"""The model repository over KServe v2: which models there are, and that none is loaded or unloaded."""

from __future__ import annotations

from typing import Any, NoReturn

from pipeline.server.v2 import json_fields
from pipeline.server.v2.models import V2Models
from pipeline.v2_errors import V2Refusal


def index(models: V2Models, *, ready_alone: bool) -> list[dict[str, Any]]:
    """Every model with its state, or those that are ready alone."""
    rows = []
    for model in models.all():
        ready = models.ready(model)
        if ready or not ready_alone:
            state = "READY" if ready else "UNAVAILABLE"
            rows.append({"name": model.name, "version": model.version, "state": state})
    return rows


def asks_for_ready_alone(body: bytes) -> bool:
    """What the body of an HTTP request says. Raises V2Refusal for one that can't be read."""
    asked = json_fields.parse(body) if body.strip() else {}
    return isinstance(asked, dict) and json_fields.boolean(asked.get("ready", False), "ready")


def refuse_control(_: object = None) -> NoReturn:
    """Raises V2Refusal: which models there are is the script's and config.yml's to say."""
    raise V2Refusal("explicit model load / unload is not allowed if polling is enabled", "UNAVAILABLE")
