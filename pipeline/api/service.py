"""WebService and PipelineServer: the classes by which a user's script builds and starts a service."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.api.app import App, ScriptModels, collect_models, write_app
from pipeline.api.dag import build_dag, build_signature, collect_ops, get_raw_bodies
from pipeline.api.examples import collect_examples
from pipeline.api.op import REQUEST_OP, Op, RequestOp, ResponseOp, overrides
from pipeline.api.sequences import SequenceRules
from pipeline.api.shards import count_measured_shards
from pipeline.config.api_keys import check_api_keys
from pipeline.config.config_file import (
    LocalServiceConf,
    OpConfig,
    ServiceConfig,
    check_service_name,
    load_config,
)
from pipeline.config.nodes_section import check_nodes
from pipeline.config.op_section import check_remote_key, complete_section, find_remote_errors
from pipeline.config.report import read_yaml
from pipeline.config.tls import FILES as TLS_FILES
from pipeline.config.tls import check_tls
from pipeline.config.value_types import AUTO
from pipeline.errors import ConfigError, StartFailed
from pipeline.models.serving_model import ServingModel, merge_model_settings
from pipeline.models.variants import load_newest_version
from pipeline.process.environment import FRONT_PROCESS, require_numpy_2
from pipeline.process.log import flaw_of_directory, log_first_lines, logs_json
from pipeline.process.processes import SERVER, open_standard_files, python_module
from pipeline.process.run_module import import_installed_packages
from pipeline.process.start_signals import end_plainly, hold, left_at_once, survive_hangups
from pipeline.tuning import auto
from pipeline.tuning.marked_lines import other_machine

_HOOKS = ("preprocess", "process", "postprocess", "preprocess_batch", "postprocess_batch")


def find_missing_models(source: str, ops: Mapping[str, Op], config: ServiceConfig) -> list[str]:
    """Return a warning for each step (Op) of a service that has neither a model nor user code.

    Such a step is probably a mistake. `source` names the configuration in the warnings.
    """
    targets = {target.name for op in ops.values() for target in op.jump_to_ops}  # may pass on what they get
    notes = []
    for name, op in ops.items():
        section = config.op[name]
        conf = section.local_service_conf
        if section.has_model:
            continue
        hooks = [hook for hook in _HOOKS if overrides(op, hook)]
        key = f"{source}: op.{name}.local_service_conf"
        if conf is not None and "process" not in hooks:
            notes.append(f"{key} has no model_config, so that the Op runs no model; name its directory there")
        elif not hooks and name not in targets and not isinstance(op, RequestOp | ResponseOp):
            notes.append(
                f"{key}.model_config is missing, and {type(op).__name__} overrides no hook: the Op passes "
                "its input on; name the directory of its model there"
            )
    return notes


log = logging.getLogger(__name__)

DEFAULT_NAME = "default_service"

serve_instead: Callable[[Service], None] | None = None
"""Replacement for `Service.serve`, set before a worker or `pipeline run` runs the script."""

replaced_sections: Mapping[str, Any] = {}
"""Sections in place of the sections of config.yml, set before `pipeline ray up` runs the script."""

check_app: Callable[[App], None] | None = None
"""A check of the service before it starts, set by `pipeline ray up`. Raises ConfigError."""


class Service:
    """Base class of WebService and PipelineServer: a DAG of steps (Ops) with a name and a configuration."""

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        end_plainly()
        self.name = name
        self._config_source: str | Path | Mapping[str, Any] | None = None

    def last_op(self) -> Op:
        """Build the steps (Ops) of the service, and return the Op whose output is the response."""
        raise NotImplementedError

    def create_op(self, app: App, name: str) -> Op:
        """Build the service's steps (Ops) again in a worker process, and return the Op named `name`.

        Raises StartFailed if there is no such Op.
        """
        ops = collect_ops(self.last_op())
        if name not in ops:
            raise StartFailed(
                f"{app.script} has no Op {name} in the worker, only {', '.join(ops)}: the script must build "
                "the same Ops each time it runs"
            )
        return ops[name]

    def configure(
        self, yml_file: str | Path | None = None, yml_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Set the configuration: the path of a YAML file, or its content as a dict. `serve` reads it."""
        if (yml_file is None) == (yml_dict is None):
            raise ConfigError(f"service {self.name}: give its configuration as yml_file or as yml_dict")
        self._config_source = yml_file if yml_file is not None else yml_dict

    def resolve(self) -> tuple[dict[str, Op], Op, ServiceConfig]:
        """Return the service's steps (Ops) by name, the last step, and the final configuration.

        The arguments of the Ops override the file. Raises ConfigError with all mistakes in the Ops, the
        configuration and the files that it names.
        """
        require_numpy_2(np.__version__)
        if self._config_source is None:
            raise ConfigError(
                f"service {self.name} has no configuration: call prepare_pipeline_config('config.yml') "
                "before run_service, or prepare_server('config.yml') before run_server"
            )
        check_service_name(self.name)
        last = self.last_op()
        ops = collect_ops(last)
        config = load_config(
            self._config_source,
            op_overrides={op.name: op.given_options for op in ops.values()},
            replaced_sections=replaced_sections,
            before_warnings=lambda loaded: log_first_lines(loaded.logging, self.name),
        )
        config = self._resolve_files(self._drop_unused_sections(config, ops))
        source = self._config_source
        for note in find_missing_models(
            "configuration" if isinstance(source, Mapping) else str(source), ops, config
        ):
            log.warning(note)
        return ops, last, config

    def _drop_unused_sections(self, config: ServiceConfig, ops: Mapping[str, Op]) -> ServiceConfig:
        """Return the configuration without the `op.<name>` sections that no step (Op) of the script uses.

        Raises ConfigError if an Op has no section while another is unused: that may be its misspelt section.
        """
        source = self._config_source
        data = source if isinstance(source, Mapping) else read_yaml(Path(str(source)))
        sections = data.get("op") or {}
        unused = [name for name in sections if name not in ops]
        missing = [name for name in ops if name not in sections and not name.startswith("@")]
        if unused and missing:
            message = f"service {self.name} has no such Op, only {', '.join(ops)}"
            message += f"; without a section: {', '.join(missing)}"
            raise ConfigError("\n".join(f"op.{name}: {message}" for name in unused))
        return config.model_copy(update={"op": {name: config.op[name] for name in config.op if name in ops}})

    def _resolve_files(self, config: ServiceConfig) -> ServiceConfig:
        """Return the configuration with checked, absolute file paths and completed settings of remote models.

        Raises ConfigError with all mistakes.
        """
        dag = config.dag
        flaws = []
        sections = {}
        for name, declared in config.op.items():
            flaws += find_remote_errors(name, declared, dag.client_type) + _check_encryption(name, declared)
            section = sections[name] = complete_section(name, declared, dag.client_type, dag.request_timeout)
            if section.server_api_key_file:
                key_file = str(self._locate(section.server_api_key_file))
                section = sections[name] = section.model_copy(update={"server_api_key_file": key_file})
                flaws += check_remote_key(name, key_file)
            conf = section.local_model
            if conf is None:
                continue
            folder = self._locate(conf.model_dir)
            try:
                model = _find_model(conf, folder)
                merge_model_settings(model, conf)  # the worker repeats this for the version that it loads
                auto.require_engine(model, conf.engine)
            except ConfigError as exc:
                searched = self._list_searched(conf.model_dir) if not folder.exists() else ""
                flaws.append(f"op.{name}.local_service_conf.model_config: {exc.message}{searched}")
            conf = conf.model_copy(update={"model_dir": str(folder)})
            sections[name] = section.model_copy(update={"local_service_conf": conf})
        tls = config.tls
        if tls is not None:
            files = tls.model_dump(include={*TLS_FILES}, exclude_none=True)
            tls = tls.model_copy(update={key: str(self._locate(path)) for key, path in files.items()})
            flaws += check_tls(tls)
        security = config.security
        if security.api_keys is not None:
            security = security.model_copy(update={"api_keys": str(self._locate(security.api_keys))})
            flaws += check_api_keys(security)
        nodes = config.nodes
        if nodes is not None:
            nodes = nodes.model_copy(
                update={key: str(self._locate(path)) for key, path in nodes.files().items()}
            )
            flaws += check_nodes(nodes)
        logging = config.logging
        if logging.directory:
            folder = Path(logging.directory).absolute()  # the script may change the working directory
            flaws += filter(None, [flaw_of_directory(str(folder))])
            logging = logging.model_copy(update={"directory": str(folder)})
        if flaws:
            raise ConfigError("\n".join(flaws))
        return config.model_copy(
            update={"op": sections, "tls": tls, "security": security, "logging": logging, "nodes": nodes}
        )

    def _locate(self, name: str) -> Path:
        """Make a path absolute, relative to the working directory, as in Paddle Serving, or to config.yml."""
        path = Path(name)
        if isinstance(self._config_source, str | Path) and not path.exists():
            path = Path(self._config_source).resolve().parent / path
        return path.absolute()

    def _list_searched(self, name: str) -> str:
        """Return the end of an error message that lists the folders searched for a missing relative path."""
        if Path(name).is_absolute():
            return ""
        places = {str(Path.cwd()): None}
        if isinstance(self._config_source, str | Path):
            places[str(Path(self._config_source).resolve().parent)] = None
        return f"; {name!r} was looked for in {' and '.join(places)}"

    def serve(self) -> None:
        """Serve until SIGTERM or SIGINT. Does not return: the server replaces this process by exec.

        Worker processes run the script again. Exits with code 2 and all mistakes on stderr if the
        configuration is invalid.
        """
        if serve_instead is not None:
            serve_instead(self)
            return
        survive_hangups()
        import_installed_packages()  # the script may have imported its own client.py
        try:
            with left_at_once():
                app = self.as_app()
            if check_app is not None:
                check_app(app)
        except ConfigError as exc:
            if logs_json():
                log.error("%s", exc.message)
            elif sys.stderr is not None:
                sys.stderr.write(f"{exc.message}\n")
            sys.exit(2)
        open_standard_files()
        fd = write_app(app)
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: the script was started without
            with contextlib.suppress(OSError):
                stream.flush()
        hold()
        os.execve(sys.executable, [*python_module(SERVER), str(fd)], {**FRONT_PROCESS, **os.environ})

    def as_app(self) -> App:
        """Return a description of the service for the server process and its workers.

        Raises ConfigError with all mistakes, and if the service is not built by a script file.
        """
        ops, last, config = self.resolve()
        main = sys.modules["__main__"]
        script, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
        if script is None:
            raise ConfigError("a service needs a script: workers run it again; save it as web_service.py")
        in_thread = threading.current_thread() is not threading.main_thread()
        if in_thread or multiprocessing.parent_process() is not None:
            where = "thread" if in_thread else "process"
            raise ConfigError(
                f"service {self.name} is started in a {where} of the script's own: it takes over the process "
                "it is started in, and its workers run the script again; call run_service in the script "
                "itself, and start what else it does from another script"
            )
        described = _describe_models(ops, config)
        dag = build_dag(ops, last, first_arrival=config.dag.channel_recv_frist_arrive)
        signature = build_signature(ops, last, config.limits.kserve_rows)
        source = self._config_source
        if isinstance(source, str | Path) and (machine := other_machine(Path(source))):
            log.warning("%s was tuned on another machine (%s): tune it here", source, machine)
        app = App(
            name=self.name,
            models=collect_models(ScriptModels(self.name, dag, signature)),
            config=config,
            script=str(Path(script).resolve()),
            arguments=tuple(sys.argv[1:]),
            folder=str(Path.cwd()),
            examples=collect_examples(ops, signature),
            raw_bodies=get_raw_bodies(ops),
            described=described,
            module=spec.name if spec else "",
            sequences=_list_sequences(ops, config),
        )
        first_ops = [node.op for node in dag.steps if dag.inputs[node.name] == (REQUEST_OP,)]
        hooked = auto.HookedService(app.to_json(), first_ops)
        config, choices = auto.resolved(config, hooked, count_measured_shards(app))
        return replace(app, config=config, choices=choices)


class WebService(Service):
    """An HTTP and gRPC service whose DAG is built by an overridden `get_pipeline_response`.

    `name` is the first segment of the URL: `/NAME/prediction`.
    """

    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        """Build the steps (Ops) of the service, and return the last Op. User code overrides this method.

        The output of the last Op is the response. `read_op` stands for the request: an input of the first
        Ops.
        """
        raise ConfigError(f"service {self.name}: get_pipeline_response is not overridden; return its last Op")

    def last_op(self) -> Op:
        return self.get_pipeline_response(RequestOp())

    def prepare_pipeline_config(
        self, yml_file: str | Path | None = None, yml_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Set the configuration: the path of a YAML file, or its content as a dict.

        `run_service` reads it.
        """
        self.configure(yml_file, yml_dict)

    def run_service(self) -> None:
        """Serve until SIGTERM or SIGINT. Does not return, see `Service.serve`."""
        self.serve()


class PipelineServer(Service):
    """An HTTP and gRPC service whose DAG ends in a ResponseOp that the script builds.

    `name` is the first segment of the URL: `/NAME/prediction`.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name or DEFAULT_NAME)
        self._response_op: ResponseOp | None = None

    def set_response_op(self, response_op: ResponseOp) -> None:
        """Set the end of the DAG, a `ResponseOp([last_op])`. Raises ConfigError for any other value."""
        if not isinstance(response_op, ResponseOp):
            raise ConfigError(
                f"service {self.name}: set_response_op takes a ResponseOp, not {type(response_op).__name__}: "
                "ResponseOp(input_ops=[last_op])"
            )
        self._response_op = response_op

    def last_op(self) -> Op:
        if self._response_op is None:
            raise ConfigError(
                f"service {self.name}: call set_response_op(ResponseOp([last_op])) before run_server"
            )
        return self._response_op

    def prepare_server(
        self, yml_file: str | Path | None = None, yml_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Set the configuration: the path of a YAML file, or its content as a dict. `run_server` reads it."""
        self.configure(yml_file, yml_dict)

    def run_server(self) -> None:
        """Serve until SIGTERM or SIGINT. Does not return, see `Service.serve`."""
        self.serve()


def _find_model(conf: LocalServiceConf, folder: Path) -> ServingModel:
    """Load the newest, or the configured, version of the model in a folder. Raises ConfigError."""
    named = None if conf.engine == AUTO else conf.engine
    return load_newest_version(folder, conf.model_version, named)


def _describe_models(ops: Mapping[str, Op], config: ServiceConfig) -> dict[str, Any]:
    """Return descriptions of the models whose Op overrides `set_model_info`, as plain values by Op.

    Calls `set_model_info` of these Ops. Raises ConfigError.
    """
    described = {}
    for name, op in ops.items():
        conf = config.op[name].local_model
        if conf is not None and overrides(op, "set_model_info"):
            model = _find_model(conf, Path(conf.model_dir))
            op.set_model_info(model)
            model = op.model or model  # with the Op's own description
            described[name] = {"labels": list(model.labels), **model.description.as_dict()}
            extras = {"parameters": op.request_parameters, "row": op.row_schema, "text_info": op._text_info}
            described[name] |= {key: dict(value) for key, value in extras.items() if value}
    return described


def _list_sequences(ops: Mapping[str, Op], config: ServiceConfig) -> dict[str, SequenceRules]:
    """Return sequence rules by Op, for each Op with `sequence = True` or with state in serving.yml."""
    confs = {name: config.op[name].local_model for name in ops}
    return {
        name: SequenceRules()
        for name, conf in confs.items()
        if ops[name].sequence is True or (conf is not None and _find_model(conf, Path(conf.model_dir)).states)
    }


def _check_encryption(name: str, section: OpConfig) -> list[str]:
    """Return an error message if an Op's section names an encrypted model, which can't be decrypted."""
    if section.use_encryption_model:
        return [
            f"op.{name}.use_encryption_model: encrypted models can't be served, for their format is known to "
            "Paddle Serving's own library alone; convert the model again without encryption, and take out "
            "this key and encryption_key"
        ]
    return []
