"""The scenarios of a comparison: models, texts, other work on the cores, and numbers of connections."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.bert_models import ONNX, PADDLE, SIZES
from bench.load import CannotMeasure
from bench.peers.environments import FOLDER
from bench.running import DEMO_MODEL, ROOT
from bench.texts import headlines, mixed_lengths
from pipeline.models.serving_model import SERVER_FOLDER
from pipeline.tuning.choice import CHOICES_FILE

DEMO = "demo"
MODELS = (*SIZES, DEMO)
SHORT, MIXED, BUSY = "short", "mixed", "busy"
SHORT_CHARACTERS = 40  # maximum length of a mix's short texts


class Workload(NamedTuple):
    """The texts of the requests. neighbours: number of spinning processes on the same cores."""

    texts: Callable[[], list[str]]
    neighbours: int = 0


WORKLOADS = {SHORT: Workload(headlines), MIXED: Workload(mixed_lengths), BUSY: Workload(headlines, 2)}
PLAN: dict[tuple[str, str], tuple[int, ...]] = {  # default numbers of connections
    ("2x128", SHORT): (1, 20, 64, 256),
    ("2x128", MIXED): (20, 64),
    ("2x128", BUSY): (20, 64),
    ("12x768", SHORT): (1, 20, 64),
    ("12x768", MIXED): (20, 64),
    (DEMO, SHORT): (1, 20, 64),
}


class Scenario(NamedTuple):
    """One model and one kind of texts, at several numbers of connections."""

    model: str
    workload: str
    connections: tuple[int, ...]


def scenarios(
    models: Sequence[str], workloads: Sequence[str], connections: Sequence[int] | None
) -> list[Scenario]:
    """Return the planned scenarios of these models and workloads.

    connections: in place of the planned numbers.
    """
    return [
        Scenario(model, workload, tuple(connections or planned))
        for (model, workload), planned in PLAN.items()
        if model in models and workload in workloads
    ]


class Model(NamedTuple):
    """A model to compare servers with. directory: the serving model.

    paddle: its Paddle program, for peers without ONNX.
    """

    key: str
    directory: Path
    paddle: Path

    def forget_choices(self) -> None:
        """Let `auto` choose again, unless the model is the user's."""
        if self.key != DEMO:
            (self.directory / SERVER_FOLDER / CHOICES_FILE).unlink(missing_ok=True)


def get_model(key: str) -> Model:
    """Return a model, created below build/peers at the first use. Raises CannotMeasure."""
    if key == DEMO:
        if not (DEMO_MODEL / SERVER_FOLDER).is_dir():
            raise CannotMeasure("models/demo is not there; run `paddlewheel convert demo` first")
        return Model(key, DEMO_MODEL, DEMO_MODEL)
    folder = FOLDER / "models" / key
    # In a separate process: Paddle's threads would stay in this one.
    command = [sys.executable, "-m", "bench.bert_models", str(folder), key]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMeasure(f"the model {key} can't be made: {done.stderr[-800:].strip()}")
    return Model(key, folder / ONNX, folder / PADDLE)
