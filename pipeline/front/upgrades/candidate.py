"""The new version of a model on disk: finds it, and checks that it takes the requests of the old version."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.api.app import ServedModel
from pipeline.errors import ConfigError, InvalidInput, UnknownService
from pipeline.front.pool.plan import Plan, plan
from pipeline.front.repository import LoadFailed, ModelLoader, Repository, merged
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.models.serving_model import load_serving_model
from pipeline.models.signature import Variable
from pipeline.models.tensor_spec import TensorSpec


class UpgradeRefused(InvalidInput):
    """Raised for an upgrade that can't begin (HTTP 400). No model has been loaded."""


class Interface(NamedTuple):
    """Inputs and outputs of a model version: datatype and shape as text, by name."""

    inputs: Mapping[str, str]
    optional: frozenset[str]  # names of inputs that a request may omit
    outputs: Mapping[str, str]
    max_batch_size: int = 0


@dataclass(frozen=True)
class Candidate:
    """A new version of a served model, and the plans for the workers of the old and the new version."""

    name: str  # of the model
    op: str  # runs the old version for live requests
    old: str  # version
    new: str
    old_plan: Plan
    new_op: str  # of `new_plan`; the same as `op` in a service script
    new_plan: Plan  # its workers answer requests of the old version, too
    key: str  # of the old version's model

    @property
    def shifted(self) -> frozenset[str]:
        """Keys of the models whose requests either version may answer during the upgrade."""
        return frozenset(m.key for m in self.new_plan.app.models if self.new_op in m.graph.ops)


async def find_candidate(scheduler: Scheduler, repository: Repository, name: str, version: str) -> Candidate:
    """Find a version of a model on disk, and compare its inputs and outputs with the served version.

    Raises UnknownService (HTTP 404) for a model that is not served. Raises UpgradeRefused for a version that
    is not on disk, takes other inputs, or can't be compared. Raises NotReady while the service starts.
    """
    scheduler.check_settled()
    if not version.isdecimal() or int(version) == 0:
        raise UpgradeRefused(f"version {version[:100]!r} is no number from 1 up, such as 2")
    version = str(int(version))
    served = [m for m in scheduler.app.models if m.name == name and not scheduler.has_unloaded(m.key)]
    if not served:
        names = ", ".join(sorted({model.name for model in scheduler.app.models})) or "none"
        raise UnknownService(f"model {name[:100]!r} is not loaded; the models are {names}")
    try:
        if isinstance(repository, ModelLoader):
            return await _find_in_repository(scheduler, repository, served[-1], version)
        return await _find_in_script(scheduler, served[-1], version)
    except LoadFailed as exc:
        raise UpgradeRefused(f"version {version} of model {name!r} can't be loaded: {exc.message}") from exc


async def _find_in_repository(
    scheduler: Scheduler, loader: ModelLoader, old: ServedModel, version: str
) -> Candidate:
    if not old.op:
        raise UpgradeRefused(f"model {old.name!r} is an ensemble: upgrade the models of its steps")
    content = await loader.read_model(old.name)
    versions = [model for model in content.models if model.name == old.name]
    new = next((model for model in versions if model.version == version), None)
    _check_version(old.name, old.version, version, [model.version for model in versions])
    assert new is not None
    _check_comparable(scheduler, old)
    if new.is_decoupled:
        raise UpgradeRefused(f"version {version} of model {old.name!r} sends any number of responses")
    _check_interface(old.name, version, _describe_signature(old), _describe_signature(new))
    app = merged(scheduler.app, old.name, content)
    models = tuple(model for model in app.models if model.key != old.key)
    # The folder of a version counts as its files.
    alias = new._replace(version=old.version, folder="")
    app = replace(app, models=(*models, alias))
    new_plan = await asyncio.to_thread(_plan, app, new.op)
    old_plan = scheduler.pools[old.op].plan
    return Candidate(old.name, old.op, old.version, version, old_plan, new.op, new_plan, old.key)


async def _find_in_script(scheduler: Scheduler, model: ServedModel, version: str) -> Candidate:
    pools = scheduler.pools
    ops = [op for op in model.graph.ops if pools[op].plan.version]
    if len(ops) != 1:
        names = ", ".join(ops) or "none of its Ops"
        raise UpgradeRefused(f"model {model.name!r} has models in {names}: name one Op with one model")
    op = ops[0]
    _check_comparable(scheduler, model)
    new_plan = await asyncio.to_thread(_plan, scheduler.app, op)
    old_plan = pools[op].plan
    _check_version(model.name, old_plan.version, version, [new_plan.version])
    old, new = await asyncio.to_thread(lambda: [_describe_files(each, op) for each in (old_plan, new_plan)])
    _check_interface(model.name, version, old, new)
    return Candidate(model.name, op, old_plan.version, version, old_plan, op, new_plan, model.key)


def _plan(app: Any, op: str) -> Plan:
    """Return the plan of an Op from the files on disk. Raises UpgradeRefused if they are invalid."""
    try:
        return plan(app, op)
    except (ConfigError, OSError) as exc:
        raise UpgradeRefused(f"Op {op}: {exc}") from exc


def _check_version(name: str, old: str, new: str, on_disk: Sequence[str]) -> None:
    """Raise UpgradeRefused unless a load would serve version `new`, the newest, in place of version `old`."""
    if new not in on_disk:
        listed = ", ".join(on_disk) or "none"
        raise UpgradeRefused(
            f"a load of model {name!r} would not serve version {new}, but {listed}: see its folder and its "
            "version_policy or model_version"
        )
    newest = max(on_disk, key=int)
    if new != newest:
        raise UpgradeRefused(f"version {newest} of model {name!r} is newer than {new}: upgrade to {newest}")
    if new == old:
        raise UpgradeRefused(f"version {new} of model {name!r} is served already")


def _check_comparable(scheduler: Scheduler, model: ServedModel) -> None:
    """Raise UpgradeRefused for a model whose requests can't run twice for a comparison."""
    if model.is_decoupled:
        raise UpgradeRefused(
            f"model {model.name!r} sends any number of responses, which can't be compared: load the new "
            "version"
        )
    if scheduler.keeps_sequences(model.key):
        raise UpgradeRefused(
            f"model {model.name!r} keeps sequences, whose requests can't be repeated: load the new version"
        )


def check_canary(scheduler: Scheduler, candidate: Candidate) -> None:
    """Raise UpgradeRefused for a model whose live requests can't be divided between two versions."""
    app, name = scheduler.app, candidate.name
    if not app.config.op[candidate.op].crash_retry:
        raise UpgradeRefused(
            f"model {name!r} has crash_retry: false, so that no request may run twice: leave out canary"
        )
    if scheduler.is_cached(candidate.key):
        raise UpgradeRefused(
            f"model {name!r} has a response cache, which is of one version: leave out canary"
        )
    if app.get_batching(candidate.op).in_order:
        raise UpgradeRefused(
            f"model {name!r} has preserve_ordering, which two versions do not share: leave out canary"
        )


def _check_interface(name: str, version: str, old: Interface, new: Interface) -> None:
    """Raise UpgradeRefused for a version that does not take the requests of the old version."""
    error = find_interface_error(old, new)
    if error:
        raise UpgradeRefused(f"version {version} of model {name!r} {error}")


def find_interface_error(old: Interface, new: Interface) -> str:
    """Return why the new version does not accept the requests of the old version; empty if it does.

    The new version may have additional outputs and additional optional inputs.
    """
    for kind, before, after in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
        for name, text in before.items():
            if name not in after:
                return f"has no {kind} {name!r}"
            if after[name] != text:
                return f"declares {kind} {name!r} as {after[name]}, the served version as {text}"
    added = [name for name in new.inputs if name not in old.inputs and name not in new.optional]
    if added:
        return f"needs input {added[0]!r}, which the served version does not have"
    if old.max_batch_size and new.max_batch_size < old.max_batch_size:
        return f"takes {new.max_batch_size} rows at most, the served version {old.max_batch_size}"
    return ""


def _describe_signature(model: ServedModel) -> Interface:
    assert model.signature is not None  # each model of a repository has a signature
    inputs, outputs, rows = model.signature
    optional = frozenset(spec.name for spec in inputs if spec.optional)
    return Interface(_describe_specs(inputs), optional, _describe_specs(outputs), rows)


def _describe_specs(specs: Sequence[TensorSpec]) -> dict[str, str]:
    return {spec.name: f"{spec.datatype} {list(spec.shape)}" for spec in specs}


def _describe_files(plan: Plan, op: str) -> Interface:
    """Return the inputs and outputs of a Paddle Serving model from its files. Raises UpgradeRefused."""
    conf = plan.app.config.op[op].local_model
    assert conf is not None  # the Op has a model
    try:
        model = load_serving_model(Path(plan.app.folder, conf.model_dir), conf.engine)
    except (ConfigError, OSError) as exc:
        raise UpgradeRefused(f"Op {op}: {exc}") from exc
    return Interface(_describe_variables(model.feeds), frozenset(), _describe_variables(model.fetches))


def _describe_variables(variables: Sequence[Variable]) -> dict[str, str]:
    return {variable.alias: f"{variable.dtype} {list(variable.shape)}" for variable in variables}
