"""What is asked of a conversion from any source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from convert.result import FORMATS
from convert.whole.source_kind import SourceKind
from pipeline.errors import ConversionError


@dataclass(frozen=True)
class Wanted:
    """What is asked of a conversion: the arguments of its steps, each as the step's own command has them.

    `trusted`: a source may be loaded that runs code. `padding` None: what the model's notes or the names of
    its feeds suggest is tried. `int8`: that form, too.
    """

    engine: str = ""
    input_spec: str = ""
    params: Path | None = None
    task: str = ""
    labels: tuple[str, ...] = ()
    num_labels: int = 0
    random_weights: bool = False
    program_format: str = FORMATS[0]
    fetch_alias: tuple[str, ...] = ()
    padding: str | None = None
    files: tuple[Path, ...] = ()
    rebatch: bool = False
    int8: bool = False
    trusted: bool = False


def check_fit(source: str, kind: SourceKind, wanted: Wanted) -> None:
    """Raise ConversionError for an option that this kind of source has no use for."""
    layer, nlp, table = SourceKind.LAYER, SourceKind.PADDLENLP, SourceKind.TABLE
    takers: dict[str, tuple[object, tuple[SourceKind, ...]]] = {
        "--params": (wanted.params, (layer,)),
        "--task": (wanted.task, (nlp,)),
        "--num-labels": (wanted.num_labels, (nlp,)),
        "--random-weights": (wanted.random_weights, (nlp,)),
        "--format pdmodel": (wanted.program_format != FORMATS[0], (layer, nlp, SourceKind.TORCH)),
        "--input-spec": (wanted.input_spec, (layer, nlp, SourceKind.TORCH, table)),
        "--trust": (wanted.trusted, (table,)),
    }
    for option, (value, kinds) in takers.items():
        if value and kind not in kinds:
            names = " or ".join(known.value for known in kinds)
            raise ConversionError(f"{option} is for {names}; {source} is {kind.value}.")
