"""An Op without a model, where one may have been forgotten: told at the start, and served all the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.service_process import APPS, ServiceProcess

BARE = "op.bare.local_service_conf.model_config is missing, and Op overrides no hook"
NAMELESS = "op.hooked.local_service_conf has no model_config, so that the Op runs no model"


@pytest.mark.parametrize(
    ("op", "told"),
    [
        (None, [BARE]),
        ({"hooked": {"local_service_conf": {"device_type": 0}}}, [BARE, NAMELESS]),
        ({"bare": {"local_service_conf": {}}}, ["op.bare.local_service_conf has no model_config"]),
    ],
    ids=["an empty op", "a section without", "an empty section"],
)
def test_a_model_that_may_have_been_forgotten_is_told(op: Any, told: list[str]) -> None:
    with ServiceProcess(APPS / "bare.py", {"op": op}) as service:
        assert service.predict({"x": "1"}) == {"x": "1"}
        lead = f"{service.config_path}: "
        warnings = [line.removeprefix(lead) for line in service.log.splitlines() if line.startswith(lead)]
        assert [line[: len(text)] for line, text in zip(warnings, told, strict=True)] == told
        assert "Op hooked in 1 process (no model)" in service.log
