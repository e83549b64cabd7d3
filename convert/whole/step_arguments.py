"""The arguments of `convert all`, which its steps receive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from convert.result import FORMATS
from convert.whole.source import SourceKind
from pipeline.errors import ConversionError


@dataclass(frozen=True)
class StepArguments:
    """The arguments of `convert_all`. Each is the option of the command that runs a step."""

    engine: str = ""
    input_spec: str = ""
    params: Path | None = None
    task: str = ""
    labels: tuple[str, ...] = ()
    num_labels: int = 0
    random_weights: bool = False
    program_format: str = FORMATS[0]
    fetch_alias: tuple[str, ...] = ()
    padding: str | None = None  # None tries the padding that the notes or the feeds suggest
    files: tuple[Path, ...] = ()
    rebatch: bool = False
    int8: bool = False  # whether to add an int8 form
    trusted: bool = False  # whether a source that runs code may be loaded


def check_fit(source: str, kind: SourceKind, step_arguments: StepArguments) -> None:
    """Raise ConversionError for an argument that doesn't apply to this kind of source."""
    layer, nlp, table = SourceKind.LAYER, SourceKind.PADDLENLP, SourceKind.TABLE
    torch = (SourceKind.TORCH, SourceKind.TORCHSCRIPT)
    takers: dict[str, tuple[object, tuple[SourceKind, ...]]] = {
        "--params": (step_arguments.params, (layer,)),
        "--task": (step_arguments.task, (nlp,)),
        "--num-labels": (step_arguments.num_labels, (nlp,)),
        "--random-weights": (step_arguments.random_weights, (nlp,)),
        "--format pdmodel": (step_arguments.program_format != FORMATS[0], (layer, nlp, torch[0])),
        "--input-spec": (step_arguments.input_spec, (layer, nlp, *torch, table)),
        "--trust": (step_arguments.trusted, (table,)),
    }
    for option, (value, kinds) in takers.items():
        if value and kind not in kinds:
            names = " or ".join(accepted.value for accepted in kinds)
            raise ConversionError(f"{option} is for {names}; {source} is {kind.value}.")
