"""`paddlewheel run`: runs a service script as `python3 SCRIPT` does, with another configuration if wanted."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.api import service
from pipeline.errors import ConfigError
from pipeline.offline.script_service import SCRIPT
from pipeline.paddle_serving.numpy_1 import install_numpy_1_names
from pipeline.process.app_modules import lead_import_path, offer_paddle_serving_names
from pipeline.script import print_config


def run_script(
    script: Path, arguments: Sequence[str] = (), *, config: Path | None = None, show_config: bool = False
) -> None:
    """Run the Python script of a service, as `python3 SCRIPT ARGUMENTS` does, in this process.

    If `script` is a folder, its web_service.py runs with that folder as the working directory. config: file
    that replaces the configuration that the script passes to `prepare_pipeline_config` or `prepare_server`.
    show_config: print the resolved configuration and exit. Does not return if the script serves: the server
    takes over this process. Raises ConfigError for a missing file and for a script that serves nothing.
    """
    folder = script if script.is_dir() else None
    script = script / SCRIPT if folder else script
    if not script.is_file():
        raise ConfigError(f"{script} is not a file; name the script of a service, e.g. {SCRIPT}")
    if config and not config.is_file():
        raise ConfigError(f"--config {config} is not a file; name one like config.yml")
    # The script may change folder before it serves.
    script, config = script.absolute(), config and config.absolute()
    if folder:
        os.chdir(folder)
    if config or show_config:
        service.serve_instead = lambda web_service: _serve_with_config(web_service, config, show_config)
    sys.argv = [str(script), *arguments]
    lead_import_path(script.resolve().parent, serves=True)
    offer_paddle_serving_names()
    install_numpy_1_names()
    runpy.run_path(str(script), run_name="__main__")
    raise ConfigError(f"{script} ended without calling run_service(), so nothing is served")


def _serve_with_config(web_service: service.Service, config: Path | None, show_config: bool) -> None:
    service.serve_instead = None
    if config:
        web_service.configure(config)
    if show_config:
        print_config(web_service)
    web_service.serve()
