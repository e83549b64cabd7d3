"""Settings of sentence encoders and of models that compare texts: sections of serving.yml, and files.

The files are those of Sentence Transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from pipeline.config.value_types import PositiveInt, Section
from pipeline.errors import ConfigError

SENTENCE_KEY = "sentence"
Pooling = Literal["mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken"]
AnyPooling = Literal["auto", "mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken", "none"]
MAX_DIMENSIONS = 1 << 16  # that a request may ask for


class EmbeddingOutput(Section):
    """An output with a vector per text, pooled from token vectors or computed by the model."""

    kind: Literal["embedding"] = "embedding"
    pooling: AnyPooling = Field(
        default="auto",
        description="What makes one vector of those of the tokens: their mean, the first (cls) or the last "
        "(lasttoken), the greatest of each number (max), their sum over the root of their number "
        "(mean_sqrt_len), or their mean with weights 1, 2, 3, ... (weightedmean); auto: as `sentence` in "
        "serving.yml or 1_Pooling/config.json beside the model says, else mean; none where the fetch has "
        "one for each text.",
    )
    normalize: bool = Field(
        default=True, description="Whether vectors have the length 1; requests may say another."
    )
    dimensions: PositiveInt | None = Field(
        default=None,
        description="How many numbers of a vector are kept, for models trained so; requests may say another; "
        "absent: all.",
    )


class DenseLayer(Section):
    """A linear layer after the pooling, with its activation."""

    kind: Literal["dense"] = "dense"
    size: PositiveInt = Field(description="How many numbers the layer's vectors have.")
    activation: Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"] = Field(
        default="identity", description="Function of each number of the layer's vectors."
    )


class NormalizeLayer(Section):
    """A layer that scales vectors to length 1."""

    kind: Literal["normalize"] = "normalize"


SentenceLayer = Annotated[DenseLayer | NormalizeLayer, Field(discriminator="kind")]


class SentenceSettings(Section):
    """Settings of a sentence encoder: the key `sentence` in serving.yml, as written by a conversion."""

    pooling: Pooling | list[Pooling] | None = Field(
        default=None,
        description="What makes one vector of those of the tokens; the vectors of several are concatenated.",
    )
    layers: list[SentenceLayer] = Field(
        default=[], description="Layers after the pooling, whose weights stand in sentence_layers.npz."
    )
    max_tokens: PositiveInt | None = Field(default=None, description="Tokens of a text that are read.")
    lowercase: bool = Field(default=False, description="Whether texts are read in lower case.")
    prompts: dict[str, str] = Field(default={}, description="Texts that go before a request's, by name.")
    default_prompt: str = Field(default="", description="The prompt of requests that name none.")
    include_prompt: bool = Field(default=True, description="Whether the tokens of a prompt are pooled, too.")

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """Names of the poolings, in the order in which their vectors are concatenated; may be empty."""
        if self.pooling is None:
            return ()
        return tuple(self.pooling) if isinstance(self.pooling, list) else (self.pooling,)

    def vector_size(self, pooled: int) -> int:
        """Return the size of a vector after the layers, given its size `pooled` before the layers."""
        sizes = [layer.size for layer in self.layers if isinstance(layer, DenseLayer)]
        return sizes[-1] if sizes else pooled


class SimilarityOutput(EmbeddingOutput):
    """An output with the cosine similarity of two texts' vectors."""

    kind: Literal["similarity"] = "similarity"  # type: ignore[assignment]


class RelevanceOutput(Section):
    """An output with a score for each pair of texts: how relevant the second text is to the first."""

    kind: Literal["relevance"] = "relevance"
    activation: Literal["auto", "sigmoid", "softmax", "none"] = Field(
        default="auto",
        description="What makes a score from 0 to 1 of the fetch; auto: sigmoid of one class, softmax of "
        "two, whose last means relevant.",
    )


MODULES_FILE = "modules.json"
LENGTH_FILE = "sentence_bert_config.json"
PROMPTS_FILE = "config_sentence_transformers.json"
DENSE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
LAYERS_FILE = "sentence_layers.npz"  # weights of the layers, which the conversion writes beside the model

_POOLING_FOLDER = "1_Pooling"
_VECTOR = "sentence_embedding"  # the feature that a module of a sentence vector reads and writes
# Sentence Transformers concatenates several poolings in this order.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POOLINGS = {**{name: name for name in _POOLING_FLAGS.values()}, "mean_sqrt_len_tokens": "mean_sqrt_len"}
_ACTIVATIONS = {name.lower(): name for name in ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")}
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")


@dataclass(frozen=True)
class SentenceFiles:
    """The settings in a Sentence Transformers folder, and the files that they come from."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # `sentence` of serving.yml; empty: no encoder
    dense: tuple[Path, ...] = ()  # folders of the Dense modules, in the order of modules.json
    paths: tuple[Path, ...] = ()  # all files with settings or weights, for fingerprints


def read_sentence(additions: Mapping[str, Any], folder: Path) -> SentenceSettings:
    """Read and check the settings of a sentence encoder.

    The key `sentence` of its serving.yml takes precedence (`additions` is the file's content). Without a
    pooling in that key, the files of Sentence Transformers in the model's folder or its parent folder are
    read. Raises ConfigError for a setting that can't be used.
    """
    sentence = additions.get(SENTENCE_KEY) or {}
    if isinstance(sentence, dict) and "pooling" not in sentence:
        sentence = {**_settings_beside(folder), **sentence}
    try:
        return SentenceSettings.model_validate(sentence)
    except ValidationError as exc:
        error = exc.errors()[0]
        where = ".".join(map(str, (SENTENCE_KEY, *error["loc"])))
        raise ConfigError(f"{folder}/serving.yml: {where}: {error['msg']}") from exc


def _settings_beside(folder: Path) -> Mapping[str, Any]:
    for place in (folder, folder.parent):
        files = read_sentence_files(place)
        if files.dense:
            raise ConfigError(
                f"{place / MODULES_FILE} has a Dense module, whose weights a service reads from a converted "
                f"model only: convert it (`paddlewheel convert all {folder} OUT`)"
            )
        if files.settings:
            return files.settings
    return {}


def read_sentence_files(folder: Path) -> SentenceFiles:
    """Read the settings of a Sentence Transformers folder. Returns empty settings for other folders.

    Raises ConfigError for a module, a pooling or an activation that is not supported.
    """
    modules = _read_json(folder / MODULES_FILE, list) or []
    pooling_file = folder / _pooling_folder(modules) / "config.json"
    pooling = _read_json(pooling_file, dict)
    if not modules and pooling is None:
        return SentenceFiles()
    _check_modules(modules, folder / MODULES_FILE)
    settings: dict[str, Any] = {}
    if pooling is not None:
        names = _poolings(pooling, pooling_file)
        settings["pooling"] = names[0] if len(names) == 1 else names
        if pooling.get("include_prompt") is False:
            settings["include_prompt"] = False
    if layers := list(_layers(modules, folder)):
        settings["layers"] = layers
    reading = _read_json(folder / LENGTH_FILE, dict) or {}
    length = reading.get("max_seq_length")
    if isinstance(length, int) and length > 0:
        settings["max_tokens"] = length
    if reading.get("do_lower_case") is True:
        settings["lowercase"] = True
    dense = tuple(folder / str(module.get("path")) for module in modules if _kind(module) == "Dense")
    weights = [file for place in dense for file in (place / "config.json", dense_weights(place))]
    named = [folder / MODULES_FILE, pooling_file, folder / LENGTH_FILE, folder / PROMPTS_FILE]
    paths = (*(path for path in named if path.is_file()), *weights)
    return SentenceFiles(settings | _prompts(folder), dense, paths)


def dense_weights(folder: Path) -> Path:
    """Return the weight file in the folder of a Dense module. Raises ConfigError if there is none."""
    for name in DENSE_WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"{folder} has no weights ({' or '.join(DENSE_WEIGHTS)}): fetch them into it")


def _kind(module: Any) -> str:
    return str(module.get("type", "") if isinstance(module, dict) else module).rpartition(".")[2]


def _pooling_folder(modules: Sequence[Any]) -> str:
    paths = [str(module.get("path")) for module in modules if _kind(module) == "Pooling"]
    return paths[0] if paths else _POOLING_FOLDER


def _check_modules(modules: Sequence[Any], path: Path) -> None:
    kinds = [_kind(module) for module in modules]
    for number, kind in enumerate(kinds):
        if kind not in _MODULES:
            raise ConfigError(
                f"{path} has the module {kind}, which no service runs, so its vectors would be others: name "
                f"a model of {', '.join(_MODULES)}"
            )
        if kind == "Dense" and "Pooling" not in kinds[:number]:
            raise ConfigError(f"{path} has a Dense module before the Pooling: only one after it is served")
        if kind == "Pooling" and kind in kinds[:number]:
            raise ConfigError(f"{path} has two Pooling modules: only one is served")


def _poolings(config: Mapping[str, Any], path: Path) -> list[str]:
    """Return the names of the poolings in a config.json, in the order of their concatenated vectors.

    path: the file, for messages. Raises ConfigError for an unknown pooling.
    """
    modes = config.get("pooling_mode")  # of newer versions: a name, or several
    if modes is None:
        modes = [key for key, on in config.items() if on is True and key.startswith("pooling_mode_")]
        names, order = _POOLING_FLAGS, list(_POOLING_FLAGS)
        modes.sort(key=lambda mode: order.index(mode) if mode in order else len(order))
    else:
        names, modes = _POOLINGS, modes if isinstance(modes, list) else [modes]
    unknown = [str(mode) for mode in modes if mode not in names]
    if unknown or not modes:
        raise ConfigError(
            f"{path} has {', '.join(unknown) or 'no pooling_mode'}; known are {', '.join(names)}"
        )
    return [names[mode] for mode in modes]


def _layers(modules: Sequence[Any], folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the layers after the pooling, in the form of `sentence.layers` in serving.yml.

    A Normalize module at the end is left out, because the output's setting `normalize` decides on it.
    """
    kinds = [_kind(module) for module in modules]
    last_dense = max((number for number, kind in enumerate(kinds) if kind == "Dense"), default=-1)
    for module in modules[: last_dense + 1]:
        if _kind(module) == "Dense":
            yield _dense_layer(folder / str(module.get("path")) / "config.json")
        elif _kind(module) == "Normalize":
            yield {"kind": "normalize"}


def _dense_layer(path: Path) -> dict[str, Any]:
    config = _read_json(path, dict)
    if config is None:
        raise ConfigError(f"{path} is not there: fetch it, too")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, _VECTOR):
            raise ConfigError(f"{path}: {key} is {config[key]!r}; only {_VECTOR} is served")
    module, _, name = str(config.get("activation_function", "torch.nn.Tanh")).rpartition(".")
    if not module.startswith("torch.") or name.lower() not in _ACTIVATIONS:
        names = ", ".join(_ACTIVATIONS.values())
        raise ConfigError(f"{path}: the activation_function {module}.{name} is not served; known are {names}")
    size = config.get("out_features")
    if type(size) is not int or size < 1:
        raise ConfigError(f"{path}: out_features {size!r} is not a whole number from 1 up")
    return {"kind": "dense", "size": size, "activation": name.lower()}


def _prompts(folder: Path) -> dict[str, Any]:
    config = _read_json(folder / PROMPTS_FILE, dict) or {}
    prompts = {name: text for name, text in (config.get("prompts") or {}).items() if text}
    if not prompts:
        return {}
    default = config.get("default_prompt_name")
    named = {"default_prompt": default} if default in prompts else {}
    return {"prompts": prompts, **named}


def _read_json(path: Path, kind: type) -> Any:
    """Return the content of a JSON file; None if there is no file.

    Raises ConfigError for a file that can't be read, or whose content is not of the type `kind`.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} can't be read ({exc}); is it whole?") from exc
    if not isinstance(content, kind):
        raise ConfigError(f"{path} is no {kind.__name__} in JSON; is it of Sentence Transformers?")
    return content
