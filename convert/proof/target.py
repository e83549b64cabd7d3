"""The facts about a model's inputs from which random or sample inputs are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from convert.programs.inference_program import InferenceProgram
from convert.programs.program_feeds import ProgramTensor
from pipeline.errors import ConfigError, ConversionError
from pipeline.models.serving_model import SERVER_CONF, FeedPadding, ServingModel, Variable
from pipeline.models.signature import read_signature


@dataclass(frozen=True)
class Target:
    """Facts about a model's inputs, with id limits and tokenizer folder, by which test inputs are made."""

    source: object  # name of the model in messages
    feeds: tuple[Variable, ...]  # inputs have their names; a file may also use the aliases
    id_limits: Mapping[str, int]  # as in `InferenceProgram`, by name
    folder: Path | None = None  # of the tokenizer's files
    padding: Mapping[str, FeedPadding] = field(default_factory=dict)  # that may join rows

    @property
    def specs(self) -> tuple[ProgramTensor, ...]:
        """Name, dtype and shape of each input."""
        return tuple(ProgramTensor(feed.name, feed.dtype, feed.shape) for feed in self.feeds)

    @property
    def by_row(self) -> bool:
        """Whether each input has a batch axis and no LoD, so that its rows can be split and joined."""
        return all(feed.has_rows and not feed.is_lod for feed in self.feeds)


def create_target(program: InferenceProgram) -> Target:
    """Return the input facts of an exported model, from which `Inputs` makes random or sample inputs.

    If there is a serving model's prototxt beside the model, the inputs have the aliases declared there.
    """
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


def create_specs_target(
    source: object, specs: tuple[ProgramTensor, ...], id_limits: Mapping[str, int], folder: Path | None = None
) -> Target:
    """Return the input facts of a model that has not been exported yet, such as a Layer, for `Inputs`.

    source: the model's name in messages. folder: the folder of the model's tokenizer.
    """
    return Target(source, tuple(Variable(v.name, v.name, v.dtype, v.shape) for v in specs), id_limits, folder)


def create_model_target(model: ServingModel, program: InferenceProgram) -> Target:
    """Return the input facts of a serving model, with its aliases and declared padding, for `Inputs`."""
    return Target(model.directory, model.feeds, program.id_limits, model.directory, named_padding(model))


def named_padding(model: ServingModel) -> dict[str, FeedPadding]:
    """Return a serving model's declared padding (axis and value), keyed by input names instead of aliases."""
    declared = model.padding.feeds if model.padding else {}
    return {feed.name: declared[feed.alias] for feed in model.feeds if feed.alias in declared}
