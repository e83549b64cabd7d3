"""`auto_complete_config` of a Python model, run in a process of its own, for it runs the model's code.

`python -m pipeline.triton.python_backend.auto_complete MODEL_PY [--install-requirements]`: the configuration
comes as JSON on standard input, and leaves, completed, on the last line of standard output.
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

TIMEOUT_S = 120.0  # beside what pip takes
MAX_LINES = 20  # of what a model writes
MAX_ERROR_CHARS = 8192  # of what a model raises, after what it writes


def completes(program: Path) -> bool:
    """Whether the model's file speaks of `auto_complete_config`."""
    return b"auto_complete_config" in program.read_bytes()


def completed(
    program: Path, config: dict[str, Any], *, install_requirements: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration as the model completes it, and the last lines that the model wrote meanwhile.

    Raises ConfigError with what the model raised.
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
        made: dict[str, Any] = json.loads(helper.last_line())
    except (IndexError, ValueError):  # the model's code has ended the process, or written there itself
        raise ConfigError(f"Internal: auto_complete_config of {program} returned no configuration") from None
    return made, [one_line(line) for line in helper.stderr.splitlines()[-MAX_LINES:] if line.strip()]


def _main(program: Path, *, install_requirements: bool) -> int:
    from pipeline.triton.python_backend.python_model import failure, load_module
    from pipeline.triton.python_backend.utils import ModelConfig

    told = sys.stdout
    sys.stdout = sys.stderr  # the model's own lines are none of the answer
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")  # for pb_utils.Logger
    given = json.loads(sys.stdin.read())
    config = ModelConfig(given)
    try:
        missing = environment.offer_packages(
            given, program.parent.parent, program.parent.name, install_requirements
        )
        model = getattr(load_module(program, missing), "TritonPythonModel", None)
        if hasattr(model, "auto_complete_config"):
            config = model.auto_complete_config(config) or config  # type: ignore[union-attr]
        made = json.dumps(config.as_dict())
    except ConfigError as exc:
        sys.stderr.write(exc.message)
        return 1
    except BaseException as exc:
        sys.stderr.write(failure(exc, program))
        return 1
    told.write(f"{made}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), install_requirements="--install-requirements" in sys.argv[2:]))
