"""A new service for a serving model: a folder with web_service.py and config.yml that starts and answers."""

from __future__ import annotations

import re
import shlex
import shutil
import textwrap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import yaml

from pipeline.api.dag import build_signature
from pipeline.api.examples import ExampleRequest, build_example_requests, collect_examples, example_body
from pipeline.api.op import Op, RequestOp
from pipeline.config.config_file import check_service_name, load_config
from pipeline.errors import ConfigError
from pipeline.launch.command_options import NO_OPTIONS, ModelOptions
from pipeline.launch.commands import interpreter
from pipeline.launch.new_description import describe_reading, with_description
from pipeline.launch.new_service_templates import CONFIG, ENGINE_COMMENTS, PROCESSES, SCRIPT
from pipeline.models.serving_model import (
    ADDITIONS,
    SERVICE_KEYS,
    ServingModel,
    choose_version,
    load_serving_model,
)
from pipeline.ops.described import DescribedOp

SCRIPT_NAME, CONFIG_NAME, MODEL_NAME = "web_service.py", "config.yml", "model"
MAX_COMMAND_LENGTH = 400  # characters of a body in a command; a longer body gets a file


@dataclass(frozen=True)
class NewApp:
    """The files of a new service."""

    directory: Path
    name: str
    model: ServingModel
    model_path: Path  # `model_config` of config.yml, relative if it is below `directory`
    http_port: int
    rpc_port: int
    describes: bool = False  # whether a description of the model is written; the model's serving.yml stays
    copies: bool = False  # whether the files of the model are copied to `directory / MODEL_NAME`

    @classmethod
    def prepare(
        cls,
        directory: Path,
        model: Path,
        name: str | None = None,
        *,
        model_options: ModelOptions = NO_OPTIONS,
        copies: bool = False,
        http_port: int,
        rpc_port: int,
    ) -> NewApp:
        """Check everything before a file is written. Raise ConfigError in one sentence.

        copies: the new folder gets a copy of the model, unless the model is in that folder.
        """
        folder = directory.resolve()
        name = name or folder.name
        check_name(name)
        loaded = load_serving_model(choose_version(model).directory)
        serving_model = with_description(loaded, model_options)
        _check_aliases(serving_model)
        path = model.parent.resolve() / model.name  # a link to the current version stays one
        if path.is_relative_to(folder):
            path, copies = path.relative_to(folder), False
        _check_room(folder, path)
        if copies:
            path = Path(MODEL_NAME)
        describes = serving_model is not loaded
        app = cls(directory, name, serving_model, path, http_port, rpc_port, describes, copies)
        load_config(yaml.safe_load(app.config()))
        _ = app.example
        return app

    def config(self) -> str:
        """Return the text of config.yml."""
        return CONFIG.substitute(
            name=self.name,
            key=_yaml(self.name),
            model=_yaml(str(self.model_path)),
            http_port=f"{self.http_port:<7}",
            rpc_port=f"{self.rpc_port:<8}",
            padding=_comment(padding_remark(self.model), indent=4),
            **ENGINE_COMMENTS.get(self.model.engine, PROCESSES)._asdict(),
        )

    def script(self) -> str:
        """Return the text of web_service.py."""
        declared_inputs, declared_outputs = self._op.input_tensors, self._op.output_tensors
        aliases = [[variable.alias for variable in many] for many in (self.model.feeds, self.model.fetches)]
        names = [
            list(declared) or model_names
            for declared, model_names in zip((declared_inputs, declared_outputs), aliases, strict=True)
        ]
        inputs, outputs = (_in_docstring(", ".join(many)) for many in names)
        question = _in_docstring(self.question())
        description = f', description=CONFIG.with_name("{ADDITIONS}")' if self.describes else ""
        return SCRIPT.substitute(
            name=self.name, question=question, inputs=inputs, outputs=outputs, description=description,
            described=ADDITIONS if self.describes else f"{ADDITIONS} beside the model",
        )  # fmt: skip

    @cached_property
    def _op(self) -> DescribedOp:
        op = DescribedOp(name=self.name, input_ops=[RequestOp()])
        op.set_model_info(self.model)
        return op

    @cached_property
    def example(self) -> ExampleRequest:
        """Example request for the user. Raises ConfigError if the model can't be served this way."""
        ops: dict[str, Op] = {self.name: self._op}
        signature = build_signature(ops, self._op)
        requests = build_example_requests(self.name, signature, collect_examples(ops, signature))
        kinds = self.model.description.kinds
        if "image" in kinds:
            return requests["image/png"]
        if kinds != {"tensor"}:
            return requests["v1-http"]
        path = f"/{quote(self.name)}/prediction"
        return ExampleRequest(path, example_body(self.model.feeds, self.model.read_example()).encode())

    @property
    def example_file(self) -> str:
        """Name of the file with the example's body; empty if the body is in the command."""
        if self.example.media == "image/png":
            return "example.png"
        return "example.json" if len(self.example.body) > MAX_COMMAND_LENGTH else ""

    def question(self) -> str:
        """Return a command that sends the example to the running service, from the folder of `new`."""
        file = str(self.directory / self.example_file) if self.example_file else ""
        return self.example.command(f"localhost:{self.http_port}", file)

    @property
    def script_path(self) -> Path:
        return self.directory / SCRIPT_NAME

    def next_steps(self, *, starts: bool = False) -> str:
        """Return the instructions for the terminal. starts: whether this command starts the service."""
        described = ADDITIONS if self.describes else ""
        copied = f"{MODEL_NAME}/" if self.copies else ""
        files = [SCRIPT_NAME, CONFIG_NAME, *filter(None, [described, self.example_file, copied])]
        start = f"Start the service:\n\n  {interpreter()} {shlex.quote(str(self.script_path))}\n\nand ask it"
        if starts:
            start = "The service starts. Once it is ready, ask it from another terminal"
        remark = describe_reading(self.model.description)
        remarks = f"{remark} " if remark else ""
        if self.describes:
            remarks += f"{self.directory / ADDITIONS} says so; edit it there.\n"
        return (
            f"{self.directory} holds {', '.join(files[:-1])} and {files[-1]}. {start}:\n\n"
            f"  {self.question()}\n" + (f"\n{remarks.rstrip()}\n" if remarks else "")
        )


def padding_remark(model: ServingModel) -> str:
    """Return a sentence about batching requests of different length."""
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
            "feed that may be padded. `paddlewheel convert serving --padding FEED=0` proves and declares it."
        )
    return "Requests all have the same shape, so that any of them share a batch."


def write_app(app: NewApp) -> None:
    """Write the files. Raise ConfigError if the folder can't be written or already has such a file."""
    contents = {CONFIG_NAME: app.config().encode(), SCRIPT_NAME: app.script().encode()}
    if app.example_file:
        contents[app.example_file] = app.example.body
    if app.describes:
        description = {key: app.model.additions[key] for key in SERVICE_KEYS if app.model.additions.get(key)}
        contents[ADDITIONS] = yaml.safe_dump(description, allow_unicode=True, sort_keys=False).encode()
    try:
        app.directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with (app.directory / name).open("xb") as file:
                file.write(content)
        if app.copies:
            shutil.copytree(app.model.directory, app.directory / MODEL_NAME)
    except shutil.Error as exc:
        source, _, reason = exc.args[0][0]
        raise ConfigError(f"{source} can't be copied to {app.directory / MODEL_NAME} ({reason})") from exc
    except OSError as exc:
        raise ConfigError(f"{exc.filename or app.directory} can't be written ({exc.strerror})") from exc


def check_name(name: str) -> None:
    """Raise ConfigError for an invalid service name."""
    if not re.fullmatch(r"[^\W\d][\w.-]*", name):
        raise ConfigError(
            f"a service can't be named {name!r}; give it a name that starts with a letter and holds letters, "
            "digits, '_', '-' and '.', e.g. --name mymodel"
        )
    check_service_name(name)


def _check_aliases(model: ServingModel) -> None:
    """Refuse aliases that would end the string or comment into which they are written."""
    for variable in (*model.feeds, *model.fetches):
        if not re.fullmatch(r"[\w.:/@-]+", variable.alias):
            raise ConfigError(
                f"{model.directory}: the alias {variable.alias!r} can't stand in a script; give it an "
                "alias_name of letters, digits and '_' in both prototxt files"
            )


def _check_room(folder: Path, model_path: Path) -> None:
    """Refuse a folder with files other than the model."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder that doesn't exist yet")
    model_parts = set() if model_path.is_absolute() else set(model_path.parts[:1])
    foreign = sorted({path.name for path in folder.iterdir()} - model_parts)
    if foreign:
        raise ConfigError(
            f"{folder} is not empty, it holds {foreign[0]}; name a folder that doesn't exist yet"
        )


def _in_docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def _yaml(text: str) -> str:
    """Return a text as a YAML scalar, quoted if necessary."""
    return yaml.safe_dump(text, allow_unicode=True, width=10_000).removesuffix("...\n").strip()


def _comment(text: str, indent: int) -> str:
    lead = " " * indent + "# "
    return textwrap.fill(text, 100, initial_indent=lead, subsequent_indent=lead, break_on_hyphens=False)
