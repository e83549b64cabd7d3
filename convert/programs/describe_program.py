"""`python -m convert.programs.describe_program FOLDER`: feeds, fetches and id limits as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from convert.programs.inference_program import read_program
from pipeline.errors import ServingError


def main(folder: Path) -> int:
    try:
        program = read_program(folder)
    except ServingError as exc:
        sys.stderr.write(f"{exc.message}\n")
        return 1
    sides = [
        [(spec.name, spec.dtype, spec.shape) for spec in side] for side in (program.feeds, program.fetches)
    ]
    sys.stdout.write(f"\n{json.dumps([*sides, dict(program.id_limits)])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
