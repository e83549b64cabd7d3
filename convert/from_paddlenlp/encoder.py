"""Builds, exports and compares a PaddleNLP encoder, in a process with the converters' packages."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from convert.from_paddle.export import Recipe, export_as, layer_parity
from convert.from_paddle.weights import load_params, set_weights
from convert.from_paddlenlp.paddlenlp_source import FAMILIES, HEADS
from convert.programs.engines import import_paddle
from convert.programs.paddlenlp_import import import_models
from convert.programs.program_feeds import ProgramTensor, parse_input_spec
from convert.proof.proof_inputs import Inputs
from convert.proof.target import create_specs_target
from convert.steps.progress import Steps
from pipeline.errors import ConversionError

# The arguments of forward() in PaddleNLP, whose order the feeds keep.
INPUTS = ("input_ids", "token_type_ids", "position_ids", "attention_mask")
_SEED = 20


def export_step(
    steps: Steps,
    source: dict[str, Any],
    task: str,
    labels: int,
    input_spec: str,
    out: str,
    tolerance: float,
    lengths: list[int],
    sample: list[str],
    tokenizer: str | None,
    program_format: str,
) -> dict[str, Any]:
    """Build a PaddleNLP model and export it to `out`, in the file format `program_format`, one of FORMATS.

    `source` has "name", of a configuration in PaddleNLP, or "config", a dictionary. It also has "weights", a
    file, or "" for random weights. `labels` is the number of classes; 0 to use the configuration's number.
    `sample` are files with inputs. Texts among them are tokenized with the tokenizer in the folder
    `tokenizer`. Returns the comparison report as a dictionary, the inputs as text, the name of the class, and
    the padding id.
    """
    steps.step("Building the model")
    config, model = _build(source, task, labels)
    if source.get("weights"):
        _load_weights(model, Path(source["weights"]), steps)
    model.eval()
    specs = parse_input_spec(input_spec) if input_spec else default_inputs(config.to_dict())
    arguments = positional(specs)
    steps.step("Dynamic to static")
    built_of = {"source": source, "task": task, "labels": labels}
    recipe = Recipe(f"{__name__}:exported_layer", built_of, ("paddlenlp",))
    program = export_as(program_format, _create_exportable(model, task), recipe, arguments, Path(out))
    steps.step("Parity of dynamic and static")
    folder = Path(tokenizer) if tokenizer else None
    target = create_specs_target(type(model).__name__, program.feeds, program.id_limits, folder)
    batches = Inputs(tuple(lengths), tuple(map(Path, sample))).batches(target)
    report = layer_parity(model, program, arguments, batches, tolerance)
    return {
        "report": asdict(report),
        "feeds": [str(feed) for feed in program.feeds],
        "architecture": type(model).__name__,
        "pad_id": int(config.pad_token_id or 0),
    }


def exported_layer(source: dict[str, Any], task: str, labels: int) -> Any:
    """Build the Layer that `export_step` exports, with random weights, for export in another process."""
    return _create_exportable(_build(source, task, labels)[1], task)


def _build(source: dict[str, Any], task: str, labels: int) -> tuple[Any, Any]:
    """Return the PaddleNLP configuration, and the model with random weights."""
    paddle = import_paddle()
    transformers = import_models()
    paddle.seed(_SEED)
    config = _configuration(transformers, source, labels)
    return config, _model_class(transformers, config, task)(config)


def default_inputs(config: dict[str, Any]) -> tuple[ProgramTensor, ...]:
    """Return the inputs input_ids and attention_mask, with token_type_ids if there is more than one type."""
    types = ("token_type_ids",) if int(config.get("type_vocab_size") or 0) > 1 else ()
    return tuple(ProgramTensor(name, "int64", (-1, -1)) for name in ("input_ids", *types, "attention_mask"))


def positional(specs: tuple[ProgramTensor, ...]) -> list[ProgramTensor | None]:
    """Return inputs in the order of PaddleNLP's forward(), with None for inputs that are left out in between.

    Raises ConversionError for unknown names, and without input_ids.
    """
    by_name = {spec.name: spec for spec in specs}
    for name in by_name:
        if name not in INPUTS:
            raise ConversionError(
                f"--input-spec: the model has no input {name!r}; it takes {', '.join(INPUTS)}."
            )
    if "input_ids" not in by_name:
        raise ConversionError("--input-spec lacks input_ids, without which the model can't run.")
    last = max(INPUTS.index(name) for name in by_name)
    return [by_name.get(name) for name in INPUTS[: last + 1]]


def _create_exportable(model: Any, task: str) -> Any:
    """Return an exportable Layer with the outputs of the model's forward(). Works for RoBERTa, too."""
    if task != "token-classification":
        return model
    paddle: Any = import_paddle()

    class TokenLogits(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = getattr(model, model.base_model_prefix)
            self.classifier = model.classifier

        def forward(
            self,
            input_ids: Any,
            token_type_ids: Any = None,
            position_ids: Any = None,
            attention_mask: Any = None,
        ) -> Any:
            hidden = self.encoder(
                input_ids,
                token_type_ids=token_type_ids,
                position_ids=position_ids,
                attention_mask=attention_mask,
            )
            return self.classifier(hidden[0])

    return TokenLogits()


def _configuration(transformers: Any, source: dict[str, Any], labels: int) -> Any:
    """Return PaddleNLP's configuration object, by its name or from a dictionary.

    labels: the number of classes; 0 to use the configuration's number. Raises ConversionError for an unusable
    configuration.
    """
    if "name" in source:
        family, values = _built_in(transformers, source["name"])
    else:
        values = dict(source["config"])
        family = FAMILIES[values.pop("model_type")]
    if labels:
        values = {key: value for key, value in values.items() if key not in ("id2label", "label2id")}
        values["num_labels"] = labels
    try:
        return getattr(transformers, f"{family}Config").from_dict(values)
    except Exception as exc:
        raise ConversionError(f"PaddleNLP can't use the configuration ({exc}); correct it.") from exc


def _built_in(transformers: Any, name: str) -> tuple[str, dict[str, Any]]:
    """Return family ("Bert") and values of the configuration of this name in PaddleNLP.

    Raises ConversionError for an unknown name.
    """
    built_in: dict[str, tuple[str, dict[str, Any]]] = {}
    for family in dict.fromkeys(FAMILIES.values()):
        for key, values in getattr(transformers, f"{family}Model").pretrained_init_configuration.items():
            built_in.setdefault(key, (family, values))
    if name not in built_in:
        near = difflib.get_close_matches(name, built_in, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "name a folder or a config.json."
        raise ConversionError(f"PaddleNLP brings no configuration {name!r} of {', '.join(FAMILIES)}; {hint}")
    family, values = built_in[name]
    return family, dict(values)


def _model_class(transformers: Any, config: Any, task: str) -> Any:
    family = type(config).__name__.removesuffix("Config")
    return getattr(transformers, f"{family}{HEADS[task]}")


def _load_weights(model: Any, path: Path, steps: Steps) -> None:
    """Load every weight of the model from a .pdparams or safetensors file, and report unused weights."""
    if path.suffix == ".pdparams":
        extra = load_params(model, path, allow_extra=True)
    else:
        from safetensors.numpy import load_file

        try:
            arrays = load_file(str(path))
        except Exception as exc:
            raise ConversionError(f"{path} can't be read ({exc}); is it whole?") from exc
        extra = set_weights(model, arrays, path, allow_extra=True)
    if extra:
        steps.say(f"{path.name} holds {len(extra)} weights the model lacks, left out ({extra[0]}, ...).")
