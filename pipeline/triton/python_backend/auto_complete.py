"""Runs a Python model's `auto_complete_config` in a separate process, because it is code of the model.

`python -m pipeline.triton.python_backend.auto_complete MODEL_PY [--install-requirements]` reads the
configuration as JSON from standard input, and writes the completed configuration as JSON on the last line of
standard output.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.process.helper_process import HelperFailed, run_helper
from pipeline.process.log import one_line
from pipeline.triton.python_backend import environment

TIMEOUT_S = 120.0  # without pip's time
MAX_LINES = 20  # of the model's output
MAX_ERROR_CHARS = 8192  # of the model's error, at the end of its output


def has_auto_complete(program: Path) -> bool:
    """Return whether the text of a model.py mentions `auto_complete_config`. The file is not run."""
    return b"auto_complete_config" in program.read_bytes()


def run_auto_complete(
    program: Path, config: dict[str, Any], *, install_requirements: bool
) -> tuple[dict[str, Any], list[str]]:
    """Run `auto_complete_config` of a model.py in a separate process, for up to 2 minutes, not counting pip.

    Returns the completed configuration, and the last lines of the model's output. install_requirements: let
    pip install the model's requirements.txt. Raises ConfigError with the model's exception, and at the
    time-out.
    """
    try:
        helper = run_helper(
            "pipeline.triton.python_backend.auto_complete",
            str(program),
            *(("--install-requirements",) if install_requirements else ()),
            stdin=json.dumps(config).encode(),
            timeout_s=TIMEOUT_S + (2 * environment.TIMEOUT_S if install_requirements else 0),
        )
    except HelperFailed as exc:
        raise ConfigError(f"Internal: auto_complete_config of {program} {exc.message}") from exc
    if helper.status:
        error = helper.stderr.strip()[-MAX_ERROR_CHARS:]
        raise ConfigError(error or f"Internal: {program} left with {helper.status}")
    try:
        completed_config: dict[str, Any] = json.loads(helper.last_line())
    except (IndexError, ValueError):  # the model's code ended the process, or wrote to standard output
        raise ConfigError(f"Internal: auto_complete_config of {program} returned no configuration") from None
    return completed_config, [
        one_line(line) for line in helper.stderr.splitlines()[-MAX_LINES:] if line.strip()
    ]


def _main(program: Path, *, install_requirements: bool) -> int:
    from pipeline.triton.python_backend.python_model import describe_failure, load_module
    from pipeline.triton.python_backend.utils import ModelConfig

    output = sys.stdout
    sys.stdout = sys.stderr  # keeps the model's prints out of the answer
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")  # for pb_utils.Logger
    document = json.loads(sys.stdin.read())
    config = ModelConfig(document)
    try:
        missing = environment.add_model_packages(
            document, program.parent.parent, program.parent.name, install_requirements
        )
        model = getattr(load_module(program, missing), "TritonPythonModel", None)
        if hasattr(model, "auto_complete_config"):
            config = model.auto_complete_config(config) or config  # type: ignore[union-attr]
        answer = json.dumps(config.as_dict())
    except ConfigError as exc:
        sys.stderr.write(exc.message)
        return 1
    except BaseException as exc:
        sys.stderr.write(describe_failure(exc, program))
        return 1
    output.write(f"{answer}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), install_requirements="--install-requirements" in sys.argv[2:]))
