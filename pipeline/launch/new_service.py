"""`paddlewheel new`: writes the folder of a new service for a model, with web_service.py and config.yml."""

from __future__ import annotations

import re
import shlex
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template
from typing import Any, NamedTuple
from urllib.parse import quote

import yaml

from pipeline.api.dag import build_signature
from pipeline.api.examples import ExampleRequest, build_example_requests, collect_examples, example_body
from pipeline.api.op import Op, RequestOp
from pipeline.config.config_file import check_service_name, load_config
from pipeline.errors import ConfigError
from pipeline.launch.command_options import NO_OPTIONS, ModelOptions
from pipeline.launch.commands import interpreter
from pipeline.models.description import INPUTS_KEY, OUTPUTS_KEY, Description, describe
from pipeline.models.label_names import (
    check_label_count,
    class_counts,
    find_score_fetch,
    given_labels,
)
from pipeline.models.onnx_file import find_producer
from pipeline.models.serving_model import (
    ADDITIONS,
    LABELS_KEY,
    SERVICE_KEYS,
    ServingModel,
    Variable,
    choose_version,
    load_serving_model,
    with_service_keys,
)
from pipeline.ops.described import DescribedOp
from pipeline.ops.text_files import EMBEDDINGS, RERANKING, TextSettings, described_texts, task_in_files
from pipeline.ops.tokenizer import tokenizer_file

SCRIPT = Template('''\
"""The service $name. `python3 web_service.py` serves it as config.yml says; --help tells the options.

    $question
"""

from pathlib import Path

from pipeline import WebService
from pipeline.ops.described import DescribedOp
from pipeline.script import prepare_from_arguments

CONFIG = Path(__file__).resolve().parent / "config.yml"


class ModelOp(DescribedOp):
    """Takes $inputs, and gives $outputs.

    So says $described, as far as it says anything; these names are what clients see.
    """

    def preprocess(self, input_dicts, data_id, log_id):
        """A request to the model's feeds, one row or several. Raise pipeline.InvalidInput to refuse it."""
        (inputs,) = input_dicts.values()  # {name: value} of the request
        # Edit here: look at `inputs`, change them, or make {feed: array} of them yourself.
        return self.feeds_of(inputs)

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        """The model's rows for this request to its answer: arrays alone, or str values alone."""
        # Edit here: a threshold, other names, what else your clients want to know.
        return self.answer_of(fetch_dict)


class ModelService(WebService):
    def get_pipeline_response(self, read_op):
        return ModelOp(name="$name", input_ops=[read_op]$description)


if __name__ == "__main__":
    service = ModelService(name="$name")
    prepare_from_arguments(service, CONFIG)
    service.run_service()
''')

CONFIG = Template("""\
# The service $name. `python3 web_service.py --print-config` prints every key with its value.

http_port: $http_port# POST /$name/prediction; also /health/live, /health/ready, /metrics
rpc_port: $rpc_port# gRPC: baidu.paddle_serving.pipeline_serving.PipelineService

dag:
  http_errors: status   # 4xx and 5xx for errors; `original` answers 200 with err_no, as Paddle Serving
  request_timeout: 30   # seconds

op:
  $key:
    concurrency: 1      # $instances
    batch_size: auto    # as many requests in a predictor batch as cost the least here; none waits for more
$padding
    local_service_conf:
      engine: auto      # the fastest of those that can run the model here, timed at the first start
      client_type: local_predictor
      model_config: $model
      device_type: 0    # $devices
      devices: ""       # cards, e.g. "0,1"
      thread_num: 2     # $threads
      precision: fp32   # $precision
""")


class EngineComments(NamedTuple):
    """The comments of a new config.yml that depend on the inference engine of the model."""

    instances: str
    devices: str
    threads: str
    precision: str


PROCESSES = EngineComments(
    instances="instances, a process each with its own copy of the model",
    devices="0 CPU, 1 GPU, 2 TensorRT",
    threads="CPU threads of an instance",
    precision="bf16 where the CPU has it; auto: where it is faster and proven to answer alike",
)
ENGINE_COMMENTS = {
    "onnxruntime": EngineComments(
        instances="instances: threads that share one copy of the model; with OpenVINO a process each",
        devices="0 CPU, 1 GPU, 2 TensorRT",
        threads="CPU threads, which instances in one process share",
        precision="without effect in ONNX Runtime on the CPU; auto: bf16 of OpenVINO where proven alike",
    ),
    "openvino": PROCESSES._replace(devices="0 CPU: OpenVINO uses no other device"),
}


_TASKS_WITHOUT_LABELS = (EMBEDDINGS, RERANKING)
_MAX_LABELS = 5  # best labels of an image in an answer
_TYPES = {"string": "text", "float16": "number", "float32": "number", "float64": "number"}


def with_description(model: ServingModel, options: ModelOptions) -> ServingModel:
    """Return the model with its inputs and outputs described by the options of `paddlewheel new`.

    The description becomes the serving.yml of the new service. Without options the model is returned
    unchanged. Raises ConfigError for options that do not fit the model.
    """
    if options == NO_OPTIONS:
        return model
    _check_options(options)
    labels = given_labels(options.labels) or model.labels
    if (
        options.input == "text"
        and not options.output
        and (task := task_in_files(model)) in _TASKS_WITHOUT_LABELS
    ):
        _refuse_described(model, INPUTS_KEY, "--input")
        return described_texts(model, TextSettings(task=task, labels=tuple(given_labels(options.labels))))
    added: dict[str, Any] = {LABELS_KEY: list(labels)} if options.labels else {}
    if options.input:
        _refuse_described(model, INPUTS_KEY, "--input")
        added[INPUTS_KEY] = _INPUTS[options.input](model, options)
    feeds, fetches = ([variable.shape for variable in many] for many in (model.feeds, model.fetches))
    if options.labels and (flaw := check_label_count(labels, class_counts(feeds, fetches))):
        raise ConfigError(flaw)
    if options.output or options.top_k or (options.input and OUTPUTS_KEY not in model.additions):
        _refuse_described(model, OUTPUTS_KEY, "--output and --top-k")
        added[OUTPUTS_KEY] = _outputs(model, labels, options)
    return with_service_keys(model, added, model.directory / ADDITIONS)


def describe_reading(description: Description) -> str:
    """Return sentences on how the service preprocesses its inputs, such as resize and mean of images.

    Users compare these sentences with the preprocessing in training. Empty for models that take plain
    tensors.
    """
    remarks = [_REMARKS[item.kind](item) for item in description.inputs.values() if item.kind in _REMARKS]
    return " ".join(remarks)


def _image(model: ServingModel, options: ModelOptions) -> dict[str, Any]:
    feeds = [feed.alias for feed in model.feeds if len(feed.shape) == 4]
    if len(feeds) != 1:
        raise ConfigError(
            f"--input image is for a model with one feed [N,C,H,W] or [N,H,W,C]; "
            f"{_describe_tensors(model.feeds)}"
        )
    values: dict[str, Any] = {"kind": "image"}
    if len(model.feeds) > 1:
        values["feed"] = feeds[0]
    (feed,) = (variable for variable in model.feeds if variable.alias == feeds[0])
    grey = 1 in (feed.shape[1], feed.shape[3])
    values["preset"] = options.preset or ("plain" if grey else "torchvision")
    if options.resize:
        values["resize"] = list(options.resize)
    if options.crop:
        values["crop"] = list(options.crop)
    return {"image": values}


def _describe_text_input(model: ServingModel, options: ModelOptions) -> dict[str, Any]:
    strings = [feed.alias for feed in model.feeds if feed.dtype == "string"]
    if len(strings) == len(model.feeds) == 1:
        return {"text": {"kind": "text", "feed": strings[0]}}
    (name, values) = "text", {"kind": "text"}
    described = describe({INPUTS_KEY: {name: values}}, model.feeds, model.fetches, (), model.directory)
    text = described.inputs[name]
    assert text.kind == "text"
    tokenizer_file(text, [model.directory])
    return {name: values}


def _describe_table_input(model: ServingModel, options: ModelOptions) -> dict[str, Any]:
    if len(model.feeds) > 1:
        columns = [{"name": feed.alias, "type": _type(feed), "feed": feed.alias} for feed in model.feeds]
        return {"table": {"kind": "table", "columns": columns}}
    (feed,) = model.feeds
    width = feed.shape[1] if len(feed.shape) > 1 else 1
    if not options.columns or (width != -1 and len(options.columns) != width):
        problem = f"{len(options.columns)} are named" if options.columns else "name them"
        count = "any number of" if width == -1 else width
        raise ConfigError(f"feed {feed.alias} takes {count} columns, {problem}: --columns a,b,c in its order")
    return {
        "table": {"kind": "table", "columns": [{"name": n, "type": _type(feed)} for n in options.columns]}
    }


def _describe_tensor_input(model: ServingModel, options: ModelOptions) -> dict[str, Any]:
    return {feed.alias: {"kind": "tensor"} for feed in model.feeds}


_INPUTS = {
    "image": _image,
    "text": _describe_text_input,
    "table": _describe_table_input,
    "tensor": _describe_tensor_input,
}
INPUT_KINDS = tuple(_INPUTS)
OF_TEXTS = ("entities", "zero-shot")
OUTPUT_KINDS = ("classes", "multilabel", "tokens", *OF_TEXTS, "tensor")


def _outputs(model: ServingModel, labels: Sequence[str], options: ModelOptions) -> dict[str, Any]:
    """Return the `outputs` section of serving.yml: labels with scores for a classifier, else tensors.

    labels: names of the classes. Raises ConfigError if the model has no scores for the requested kind of
    output.
    """
    scores = find_score_fetch(model.fetches, labels)
    kind = options.output or _guess_kind(model, scores, options.input)
    if kind == "tensor" or (scores is None and not options.output):
        return {fetch.alias: {"kind": "tensor"} for fetch in model.fetches}
    if scores is None:
        raise ConfigError(
            f"--output {kind}: no fetch has scores of classes; {_describe_tensors(model.fetches)}"
        )
    if kind in OF_TEXTS and options.input != "text":
        raise ConfigError(f"--output {kind} goes with --input text")
    output: dict[str, Any] = {"kind": kind}
    if kind == "classes":
        classes = scores.shape[-1]
        best = min(_MAX_LABELS, classes) if options.input == "image" and classes > 0 else 1
        if (options.top_k or best) > 1:
            output["top_k"] = options.top_k or best
        chosen = [f.alias for f in model.fetches if f is not scores and f.dtype in ("string", "int64")]
        if len(chosen) == 1 and not labels:
            output["chosen"] = chosen[0]
    elif kind == "multilabel" and find_producer(model.program, scores) == "Sigmoid":
        output["activation"] = "none"
    if options.input in ("", "tensor") and kind != "classes":
        output["raw"] = True
    return {scores.alias: output}


def _guess_kind(model: ServingModel, scores: Variable | None, input_kind: str) -> str:
    if scores is not None and len(scores.shape) == 3:
        return "entities" if input_kind == "text" else "tokens"
    several = scores is not None and find_producer(model.program, scores) == "Sigmoid"
    return "multilabel" if several else "classes"


def _check_options(options: ModelOptions) -> None:
    owners = {
        "--preset": (options.preset, "image"),
        "--resize": (options.resize, "image"),
        "--crop": (options.crop, "image"),
        "--columns": (options.columns, "table"),
    }
    for option, (value, kind) in owners.items():
        if value and options.input != kind:
            raise ConfigError(f"{option} goes with --input {kind}")


def _refuse_described(model: ServingModel, key: str, option: str) -> None:
    if model.additions.get(key) is not None:
        path = model.directory / ADDITIONS
        raise ConfigError(f"{path} has {key} already: leave out {option}, or edit what stands there")


def _type(feed: Variable) -> str:
    return _TYPES.get(feed.dtype, "integer")


def _describe_tensors(variables: Sequence[Variable]) -> str:
    return "it has " + ", ".join(f"{v.alias} {v.dtype} {list(v.shape)}" for v in variables)


def _image_remark(image: Any) -> str:
    steps = []
    if image.resize is not None:
        sides = " x ".join(map(str, image.resize))
        steps.append(f"resized to {sides}" if len(image.resize) == 2 else f"resized (shorter side {sides})")
    if image.crop is not None:
        steps.append(f"cropped to {image.crop[0]} x {image.crop[1]}")
    steps.append(f"normalised by {image.mean} and {image.std}")
    return f"Images are {', '.join(steps)}, as by --preset {image.preset}."


_REMARKS: Mapping[str, Any] = {
    "image": _image_remark,
    "text": lambda text: "Texts are tokenized by the file beside the model." if not text.feed else "",
    "table": lambda table: f"Columns: {', '.join(column.name for column in table.columns)}.",
}


SCRIPT_NAME, CONFIG_NAME, MODEL_NAME = "web_service.py", "config.yml", "model"
MAX_COMMAND_LENGTH = 400  # characters of a body in a command; a longer body gets a file


@dataclass(frozen=True)
class NewApp:
    """A new service, not yet written to disk, of `paddlewheel new`: texts of its files, and instructions."""

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
        """Validate the name, model, options and folder, and return the new service. Writes nothing.

        model: folder of the model. copies: whether the model is copied to the new folder, unless it is
        already there. Raises ConfigError.
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
        """An example request for the user to send. Raises ConfigError if the model can't be served."""
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
        """File name for the body of the example request; empty if the body fits into the command."""
        if self.example.media == "image/png":
            return "example.png"
        return "example.json" if len(self.example.body) > MAX_COMMAND_LENGTH else ""

    def question(self) -> str:
        """Return a shell command that sends the example request to the running service.

        The user runs the command in the folder in which `paddlewheel new` was run.
        """
        file = str(self.directory / self.example_file) if self.example_file else ""
        return self.example.command(f"localhost:{self.http_port}", file)

    @property
    def script_path(self) -> Path:
        """Path of the new web_service.py."""
        return self.directory / SCRIPT_NAME

    def next_steps(self, *, starts: bool = False) -> str:
        """Return the text that tells the user how to start the service and send a request.

        starts: whether this command starts the service itself, so that the text only explains the request.
        """
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
    """Return a sentence on which requests to this model can share a batch.

    That depends on the batch dimension, and on inputs that may be padded to a common length.
    """
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
    """Write the files of a new service to its folder.

    Raises ConfigError if the folder can't be written, or already has such a file.
    """
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
    """Raise ConfigError if `name` is not a valid service name, which is part of URLs."""
    if not re.fullmatch(r"[^\W\d][\w.-]*", name):
        raise ConfigError(
            f"a service can't be named {name!r}; give it a name that starts with a letter and holds letters, "
            "digits, '_', '-' and '.', e.g. --name mymodel"
        )
    check_service_name(name)


def _check_aliases(model: ServingModel) -> None:
    """Raise ConfigError for tensor names that would make the generated script or config.yml invalid."""
    for variable in (*model.feeds, *model.fetches):
        if not re.fullmatch(r"[\w.:/@-]+", variable.alias):
            raise ConfigError(
                f"{model.directory}: the alias {variable.alias!r} can't stand in a script; give it an "
                "alias_name of letters, digits and '_' in both prototxt files"
            )


def _check_room(folder: Path, model_path: Path) -> None:
    """Raise ConfigError if `folder` exists and has files other than the model's."""
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
    """Return a text as a YAML scalar on one line, quoted if necessary."""
    return yaml.safe_dump(text, allow_unicode=True, width=10_000).removesuffix("...\n").strip()


def _comment(text: str, indent: int) -> str:
    lead = " " * indent + "# "
    return textwrap.fill(text, 100, initial_indent=lead, subsequent_indent=lead, break_on_hyphens=False)
