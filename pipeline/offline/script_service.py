"""Loads the service of a user's script without serving it: runs the script up to `run_service`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import NoReturn

from pipeline.api import service
from pipeline.api.service import Service
from pipeline.errors import ConfigError
from pipeline.paddle_serving.numpy_1 import install_numpy_1_names
from pipeline.process.app_modules import lead_import_path, offer_paddle_serving_names

SCRIPT = "web_service.py"


class _Loaded(BaseException):
    """Raised to stop a script at its `run_service`.

    It is a BaseException, so that no `except Exception` of the script catches it.
    """

    def __init__(self, loaded: Service) -> None:
        self.service = loaded


def script_in(path: Path) -> Path | None:
    """Return the service script at a path, which is the script or its folder; None if there is no script."""
    script = path / SCRIPT if path.is_dir() else path
    return script.resolve() if script.suffix == ".py" and script.is_file() else None


def service_of_script(script: Path) -> Service:
    """Run a script up to its `run_service`, and return the service.

    Raise ConfigError if the script does not call it.
    """

    def leave(loaded: Service) -> NoReturn:
        raise _Loaded(loaded)

    service.serve_instead = leave
    sys.argv = [str(script)]
    lead_import_path(script.parent, serves=True)
    offer_paddle_serving_names()
    install_numpy_1_names()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except _Loaded as loaded:
        return loaded.service
    finally:
        service.serve_instead = None
    raise ConfigError(f"{script} ended without calling run_service, so that it is no service")
