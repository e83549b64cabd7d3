"""A new service for a serving model: a folder with web_service.py and config.yml that starts and answers."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from pipeline.api.feeds import example_body
from pipeline.config.config_file import check_service_name, load_config
from pipeline.errors import ConfigError
from pipeline.launch.new_service_templates import CONFIG, LABELLED_POSTPROCESS, PLAIN_POSTPROCESS, SCRIPT
from pipeline.models.dtypes import BY_NAME
from pipeline.models.serving_model import ServingModel, Variable, load_serving_model
from pipeline.models.versions import choose_version

SCRIPT_NAME, CONFIG_NAME = "web_service.py", "config.yml"
_DECLARED = """\
    # What clients of KServe v1 and v2 send and get; edit it with preprocess and postprocess.
"""
_LOD = """\
    # The model has sequences of unequal length (LoD), which KServe can't declare.
"""


@dataclass(frozen=True)
class NewApp:
    """What is written to `directory`. `model_path` is what config.yml says: relative where it is below."""

    directory: Path
    name: str
    model: ServingModel
    model_path: Path
    http_port: int
    rpc_port: int

    @classmethod
    def of(
        cls, directory: Path, model: Path, name: str | None = None, *, http_port: int, rpc_port: int
    ) -> NewApp:
        """Look at everything before anything is written. Raises ConfigError in one sentence."""
        folder = directory.resolve()
        name = name or folder.name
        _check_name(name)
        serving_model = load_serving_model(choose_version(model).directory)
        _check_aliases(serving_model)
        path = model.parent.resolve() / model.name  # a link to the current version stays one
        if path.is_relative_to(folder):
            path = path.relative_to(folder)
        _check_room(folder, path)
        app = cls(directory, name, serving_model, path, http_port, rpc_port)
        load_config(yaml.safe_load(app.config()))
        return app

    def config(self) -> str:
        """The text of config.yml."""
        return CONFIG.substitute(
            name=self.name,
            key=_yaml(self.name),
            model=_yaml(str(self.model_path)),
            http_port=f"{self.http_port:<7}",
            rpc_port=f"{self.rpc_port:<8}",
            padding=_comment(padding_remark(self.model), indent=4),
        )

    def script(self) -> str:
        """The text of web_service.py."""
        classified = _classified(self.model)
        if classified is None:
            postprocess = PLAIN_POSTPROCESS.substitute(fetch=self.model.fetches[0].alias)
        else:
            postprocess = LABELLED_POSTPROCESS.substitute(fetch=classified.alias)
        return SCRIPT.substitute(
            name=self.name,
            question=self.question(),
            tensors=self._tensors(classified is not None),
            imports="" if classified is None else "import numpy as np\n\n",
            labels="" if classified is None else _labels(self.model.labels),
            alike=_alike(self.model),
            postprocess=postprocess,
        )

    def _tensors(self, labelled: bool) -> str:
        """What clients of KServe send and get: the model's own feeds and fetches."""
        feeds, fetches = self.model.feeds, self.model.fetches
        if any(variable.is_lod for variable in (*feeds, *fetches)):
            return _LOD
        label = [("label", "BYTES [-1]")] if labelled else []
        text = _DECLARED + _assigned("input_tensors", [_declared(feed) for feed in feeds])
        text += _assigned("output_tensors", label + [_declared(fetch) for fetch in fetches])
        body = example_body(feeds)
        if "..." not in body:
            example = json.loads(body)
            pairs = list(zip(example["key"], example["value"], strict=True))
            text += _assigned("example_key_values", pairs)
        return text

    def question(self) -> str:
        """A command that asks the running service."""
        url = f"localhost:{self.http_port}/{self.name}/prediction"
        return f"curl -s {url} -d {shlex.quote(example_body(self.model.feeds))}"

    def next_steps(self) -> str:
        """What to type now, for the terminal."""
        return (
            f"{self.directory} holds {SCRIPT_NAME} and {CONFIG_NAME}. Start the service:\n\n"
            f"  cd {shlex.quote(str(self.directory))}\n  python3 {SCRIPT_NAME}\n\n"
            f"and ask it:\n\n  {self.question()}\n"
        )


def padding_remark(model: ServingModel) -> str:
    """What the model's description means for requests of different length."""
    closed = [feed for feed in model.feeds if not feed.has_rows]
    if closed:
        return (
            f"Each request runs alone: the shape of {closed[0].alias}, {list(closed[0].shape)}, does not "
            "begin with a batch of any size. `concurrency` has several run at a time."
        )
    padded = ", ".join(model.padding.feeds) if model.padding else ""
    if padded:
        return (
            "Requests of different length share a batch: serving.yml, beside the model, declares that "
            f"{padded} may be padded."
        )
    if any(-1 in feed.shape[1:] for feed in model.feeds):
        return (
            "Requests of different shape do not share a batch: serving.yml, beside the model, declares no "
            "feed that may be padded. `python -m convert serving --padding FEED=0` proves and declares it."
        )
    return "Requests all have the same shape, so that any of them share a batch."


def write_app(app: NewApp) -> None:
    """Write both files. Raises ConfigError when the folder can't be written or holds one of them by now."""
    try:
        app.directory.mkdir(parents=True, exist_ok=True)
        for name, text in ((CONFIG_NAME, app.config()), (SCRIPT_NAME, app.script())):
            with (app.directory / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as exc:
        raise ConfigError(f"{exc.filename or app.directory} can't be written ({exc.strerror})") from exc


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[^\W\d][\w.-]*", name):
        raise ConfigError(
            f"a service can't be named {name!r}; give it a name that starts with a letter and holds letters, "
            "digits, '_', '-' and '.', e.g. --name mymodel"
        )
    check_service_name(name)


def _check_aliases(model: ServingModel) -> None:
    """Refuse names that would leave the string or comment that they are written into."""
    for variable in (*model.feeds, *model.fetches):
        if not re.fullmatch(r"[\w.:/@-]+", variable.alias):
            raise ConfigError(
                f"{model.directory}: the alias {variable.alias!r} can't stand in a script; give it an "
                "alias_name of letters, digits and '_' in both prototxt files"
            )


def _check_room(folder: Path, model_path: Path) -> None:
    """Refuse a folder that holds anything but the model itself."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder that doesn't exist yet")
    own = set() if model_path.is_absolute() else set(model_path.parts[:1])
    others = sorted({path.name for path in folder.iterdir()} - own)
    if others:
        raise ConfigError(
            f"{folder} is not empty, it holds {others[0]}; name a folder that doesn't exist yet"
        )


def _classified(model: ServingModel) -> Variable | None:
    """The only fetch with one score per label; None without labels or where it can't be told."""
    scores = [f for f in model.fetches if len(f.shape) == 2 and f.shape[1] == len(model.labels)]
    return scores[0] if model.labels and len(scores) == 1 else None


def _alike(model: ServingModel) -> str:
    """The argument of read_feeds for feeds that are padded together."""
    padded = [feed for feed in model.feeds if model.padding and feed.alias in model.padding.feeds]
    if len(padded) < 2 or len({feed.shape for feed in padded}) > 1:
        return ""
    return f", alike={json.dumps([feed.alias for feed in padded])}"


def _declared(variable: Variable) -> tuple[str, str]:
    return variable.alias, f"{BY_NAME[variable.dtype].datatype} {list(variable.shape)}"


def _assigned(name: str, pairs: Sequence[tuple[str, str]]) -> str:
    """The assignment of a dict in a class, on one line where it fits."""
    items = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pairs]
    line = f"    {name} = {{{', '.join(items)}}}\n"
    if len(line) <= 100:
        return line
    return f"    {name} = {{\n" + "".join(f"        {item},\n" for item in items) + "    }\n"


def _labels(labels: Sequence[str]) -> str:
    """The assignment, on one line where it fits."""
    texts = [json.dumps(label, ensure_ascii=False) for label in labels]
    line = f"LABELS = [{', '.join(texts)}]\n"
    return line if len(line) <= 100 else "LABELS = [\n" + "".join(f"    {text},\n" for text in texts) + "]\n"


def _yaml(text: str) -> str:
    """A text as one YAML scalar, quoted where it would be read as something else."""
    return yaml.safe_dump(text, allow_unicode=True, width=10_000).removesuffix("...\n").strip()


def _comment(text: str, indent: int) -> str:
    lead = " " * indent + "# "
    return textwrap.fill(text, 100, initial_indent=lead, subsequent_indent=lead, break_on_hyphens=False)
