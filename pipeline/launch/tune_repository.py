"""`paddlewheel tune --model-repository`: writes a model's fastest settings into its config.pbtxt.

One server runs during the search. Each candidate is a load of the model with another configuration, so that
the files of the repository stay as they are until the end.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.errors import ConfigError
from pipeline.launch.command_options import TuneOptions
from pipeline.launch.tune_command import MAX_S, SHORTEST_S, diff_lines, measure_rounds
from pipeline.process.environment import usable_cores
from pipeline.process.processes import python_module
from pipeline.triton.config_file import FILE, message_to_dict
from pipeline.tuning.candidate import Candidate, NotStarted, end_process, path_of_descriptor, reserved_ports
from pipeline.tuning.marked_pbtxt import (
    FIELDS,
    ModelGoal,
    build_fields,
    parse_model_settings,
    parse_untuned,
    with_model_settings,
)
from pipeline.tuning.sample import SampleRequest, find_request_path, read_sample_lines
from pipeline.tuning.tune import Measured, Round, Search, Settings
from pipeline.tuning.tune_report import choice_lines, print_table

_START_S = 120.0
_SERVICE_OPTIONS = "op", "engine", "precision", "key", "config", "record", "report"


def tune_model(options: TuneOptions, repository: Path) -> None:
    """Measure a model under several settings, and write the fastest settings into its config.pbtxt.

    Raises ConfigError, where possible before the measurements.
    """
    if options.service is not None:
        raise ConfigError("name a service or --model-repository, not both")
    if unusable := [name for name in _SERVICE_OPTIONS if getattr(options, name)]:
        raise ConfigError(f"--{unusable[0]} is for services; a model of a repository is tuned without it")
    if not SHORTEST_S <= options.budget_s <= MAX_S:
        raise ConfigError(f"--budget: from {SHORTEST_S:g} seconds to 24 hours, e.g. --budget 5m")
    path = _find_config(repository, options.model)
    if not (options.dry_run or os.access(path, os.W_OK)):
        raise ConfigError(f"{path} may not be written; --dry-run prints what would be")
    name, text = path.parent.name, _read_pbtxt(path)
    config = parse_untuned(text, str(path))
    try:
        baseline = parse_model_settings(config)
    except ConfigError as exc:
        raise ConfigError(f"{path} is not tuned: {exc.message}") from None
    with_model_settings(text, baseline, str(path))  # before minutes are spent
    lines = read_sample_lines(options.sample) if options.sample else []
    console = Console(stderr=True)
    with _Server.started(repository, name) as server:
        served = server.read_config()
        largest = int(served["max_batch_size"])
        requests = [
            SampleRequest(number, _find_path(line, name), line.encode()) for number, line in lines
        ] or [_build_zeros(name, served)]
        _check(server.candidate, requests, options.sample)
        batches = (1,) if largest <= 1 else (largest,) if baseline.batch != 1 else (1, largest)
        goal = ModelGoal(
            (), (), usable_cores(), options.budget_s, options.p99_ms, options.connections, batches
        )

        def measure_settings(settings: Settings, round_s: float, until: float) -> Measured:
            console.print(settings.name, soft_wrap=True)
            rounds: list[Round] = []
            try:
                server.load(config, settings)
                rounds = measure_rounds(goal, requests, server.candidate, round_s, until)
            except NotStarted as exc:
                return Measured(settings, (), exc.message)
            return Measured(settings, tuple(rounds))

        search = Search(goal, baseline, measure_settings)
        chosen = search.run()
    if not options.dry_run:
        print_table(Console(width=None if sys.stdout.isatty() else 160), search.measured(), chosen)
    console.print(
        "\n".join(choice_lines(goal, chosen, search.baseline(), FILE)),
        soft_wrap=True, markup=False, highlight=False,
    )  # fmt: skip
    text = _read_pbtxt(path)  # again: the user may have edited the file meanwhile
    written = with_model_settings(text, chosen.settings, str(path))
    if options.dry_run:
        sys.stdout.writelines(diff_lines(text, written, path))
    else:
        path.write_bytes(written.encode("utf-8"))
        console.print(f"written: {path}", soft_wrap=True)


class _Server:
    """A server of the repository on a free port, which loads one model with changing configurations."""

    def __init__(self, candidate: Candidate, model: str) -> None:
        self.candidate = candidate
        self._model = model
        self._served: dict[str, Any] = {}

    @classmethod
    @contextlib.contextmanager
    def started(cls, repository: Path, model: str) -> Iterator[_Server]:
        """Context manager: start a server that loads the model, and stop it at the end.

        Raises ConfigError with the end of the log if the model can't be loaded.
        """
        with reserved_ports(1) as (port,), tempfile.TemporaryFile() as log:
            module, *arguments = [
                "pipeline", "serve", f"--model-repository={repository}", "--model-control-mode=explicit",
                f"--load-model={model}", f"--http-port={port}", "--http-address=127.0.0.1",
                "--allow-grpc=false", "--allow-metrics=false", "--exit-on-error=true",
            ]  # fmt: skip
            process = subprocess.Popen(
                [*python_module(module, parent=os.getpid()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                candidate = Candidate(process, port, path_of_descriptor(log.fileno()))
                try:
                    candidate.wait_until_ready(time.monotonic() + _START_S)
                except NotStarted as exc:
                    raise ConfigError(f"{repository / model} can't be tuned: {exc.message}") from exc
                yield cls(candidate, model)
            finally:
                end_process(process)

    def read_config(self) -> dict[str, Any]:
        """Return the completed configuration of the loaded model."""
        self._served = json.loads(self.candidate.get(f"/v2/models/{self._model}/config")[1])
        return self._served

    def load(self, config: ModelConfig, settings: Settings) -> None:
        """Load the model with these settings. Raises NotStarted with the server's error message."""
        fields = {name: value for name, value in self._served.items() if name not in FIELDS}
        written = message_to_dict(build_fields(config, settings))
        fields |= {name: written[name] for name in FIELDS if name in written}
        body = json.dumps({"parameters": {"config": json.dumps(fields)}}).encode()
        try:
            status, answer = self.candidate.get(f"/v2/repository/models/{self._model}/load", body)
        except (OSError, http.client.HTTPException) as exc:
            raise NotStarted(f"the load got no answer ({exc})") from exc
        if status != 200:
            raise NotStarted(answer.decode("utf-8", "replace"))


def _find_config(repository: Path, model: str | None) -> Path:
    """Return the path of the model's config.pbtxt.

    model: None for the only model. Raises ConfigError without such a model, and for None with several.
    """
    if not repository.is_dir():
        raise ConfigError(f"--model-repository {repository} is not a folder")
    names = sorted(path.parent.name for path in repository.glob(f"*/{FILE}"))
    if model is None and len(names) != 1:
        raise ConfigError(f"{repository}: name the model to tune with --model, one of {', '.join(names)}")
    if model is not None and model not in names:
        raise ConfigError(f"--model {model}: {repository} has no {model}/{FILE}; it has {', '.join(names)}")
    return repository / (model or names[0]) / FILE


def _read_pbtxt(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} can't be read: {exc}") from exc


def _find_path(line: str, model: str) -> str:
    return find_request_path(json.loads(line), model)


def _build_zeros(model: str, config: dict[str, Any]) -> SampleRequest:
    """Return a request whose inputs are all zeros. Raises ConfigError for an input with variable dims."""
    inputs = []
    for spec in config["input"]:
        if spec.get("optional"):
            continue
        dims = [int(dim) for dim in spec["dims"]]
        if min(dims, default=0) < 0:
            raise ConfigError(
                f"input {spec['name']} of {model} has the dims {dims}: give requests with --sample FILE.jsonl"
            )
        shape = [1, *dims] if config["max_batch_size"] else dims
        datatype = str(spec["data_type"]).removeprefix("TYPE_").replace("STRING", "BYTES")
        zero: Any = {"BYTES": "", "BOOL": False}.get(datatype, 0)
        data = [zero] * math.prod(shape)
        inputs.append({"name": spec["name"], "datatype": datatype, "shape": shape, "data": data})
    return SampleRequest(0, f"/v2/models/{model}/infer", json.dumps({"inputs": inputs}).encode())


def _check(candidate: Candidate, requests: list[SampleRequest], sample: Path | None) -> None:
    """Send up to 100 of the requests, and raise ConfigError if the model refuses one.

    This check runs before the measurements.
    """
    for request in requests[:100]:
        if reason := candidate.refusal(request):
            source = f"{sample} line {request.line}" if request.line else "a request of zeros"
            raise ConfigError(f"{source} is refused by the model: {reason}")
