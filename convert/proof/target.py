"""A model as inputs are found for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from convert.programs.inference_program import InferenceProgram
from convert.programs.input_spec import ProgramTensor
from pipeline.errors import ConfigError, ConversionError
from pipeline.models.serving_model import SERVER_CONF, FeedPadding, ServingModel, Variable
from pipeline.models.signature import read_signature


@dataclass(frozen=True)
class Target:
    """What has to be known of a model to give it inputs.

    `source` is how sentences call it. `feeds` have the names under which inputs are given to it, and aliases
    under which a file may hold them, too. `id_limits` are those of `InferenceProgram`, by name. In `folder`
    the tokenizer's files are, if there are any. `padding` is what may be padded to run rows together.
    """

    source: object
    feeds: tuple[Variable, ...]
    id_limits: Mapping[str, int]
    folder: Path | None = None
    padding: Mapping[str, FeedPadding] = field(default_factory=dict)

    @property
    def specs(self) -> tuple[ProgramTensor, ...]:
        return tuple(ProgramTensor(feed.name, feed.dtype, feed.shape) for feed in self.feeds)

    @property
    def by_row(self) -> bool:
        """Whether its inputs can be taken apart into rows."""
        return all(feed.has_rows and not feed.is_lod for feed in self.feeds)


def create_target(program: InferenceProgram) -> Target:
    """Of a program; a serving model's prototxt beside it tells the aliases."""
    conf = program.program.parent / SERVER_CONF
    aliases = {}
    if conf.is_file():
        try:
            aliases = {feed.name: feed.alias for feed in read_signature(conf)[0]}
        except ConfigError as exc:
            raise ConversionError(f"{exc.message.rstrip('.')}.") from exc
    feeds = tuple(
        Variable(v.name, aliases.get(v.name, v.name), v.dtype, v.shape, v.name in program.ragged)
        for v in program.feeds
    )
    return Target(program.program, feeds, program.id_limits, program.program.parent)


def target_of_specs(
    source: object, specs: tuple[ProgramTensor, ...], id_limits: Mapping[str, int], folder: Path | None = None
) -> Target:
    """Of a model that isn't a program yet."""
    return Target(source, tuple(Variable(v.name, v.name, v.dtype, v.shape) for v in specs), id_limits, folder)


def target_of_model(model: ServingModel, program: InferenceProgram) -> Target:
    """Of a model that is described already."""
    return Target(model.directory, model.feeds, program.id_limits, model.directory, named_padding(model))


def named_padding(model: ServingModel) -> dict[str, FeedPadding]:
    """The declared padding by the program's names of the feeds."""
    declared = model.padding.feeds if model.padding else {}
    return {feed.name: declared[feed.alias] for feed in model.feeds if feed.alias in declared}
