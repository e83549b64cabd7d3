"""Loading and unloading of models while the service runs: `Repository` and `ModelLoader`.

`Repository` reloads the Ops (steps) of a service that a script defines. `ModelLoader` serves the models of a
model repository, as Triton does. A slow load delays no load of another model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from pipeline.api.app import App, RepositoryPlace, ServedModel
from pipeline.api.model_names import get_public_name
from pipeline.api.run_resources import find_kind_error
from pipeline.config.config_file import OpConfig
from pipeline.errors import ConfigError, NotReady, ServingError, StartFailed
from pipeline.front.pool.plan import FileState, Plan, plan
from pipeline.front.pool.worker_pool import WorkerPool
from pipeline.front.scheduler.batcher import Batcher
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.process.helper_process import cancel_helpers
from pipeline.triton.config_file import Defaults
from pipeline.triton.ensemble import rebuild_ensembles
from pipeline.triton.override import Override, OverrideFolders, read_renamed_config
from pipeline.triton.repository import ModelRepository, RepositoryContent, UnavailableModel, check_name

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class LoadFailed(StartFailed):
    """Raised when an Op or model can't be loaded. Triton's load API sends the error with HTTP status 400.

    op: name of the Op or model. version: version on disk that failed; empty if there is none. reason: message
    for the client and the log.
    """

    def __init__(self, op: str, version: str, reason: str) -> None:
        super().__init__(reason)
        self.op = op
        self.version = version


class Standing(NamedTuple):
    """Load state of a model or Op, as the repository index of Triton's API reports it."""

    state: str  # READY, LOADING, UNLOADING or UNAVAILABLE
    reason: str = ""  # of UNAVAILABLE


class ReportedUpgrade(Protocol):
    """Interface of a running or finished model upgrade, for the live overview page."""

    def build_report(self) -> Mapping[str, Any]:
        """Return the state of the upgrade as JSON values."""
        ...


class Repository:
    """Loads, reloads and unloads the Ops (steps) of a running service. Changes of one Op run one at a time.

    This class serves the Ops of a script. The subclass `ModelLoader` serves a model repository.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.failures: dict[str, LoadFailed] = {}  # error of the last load, by Op
        self.loading: list[tuple[str, list[str]]] = []  # loads of models in progress: name, versions
        self.upgrade: ReportedUpgrade | None = None  # the latest
        self._scheduler = scheduler
        self._changing = asyncio.Lock()  # one load at a time, so that there is one process more than usual
        self._busy: set[str] = set()  # Ops and models of the orders that wait without the lock
        self._order_ended = asyncio.Condition(self._changing)
        self._stopped = asyncio.Event()
        self._standings: dict[str, Standing] = {}  # of Ops that are unloaded, unloading or loading again

    def names(self) -> list[str]:
        """Return the names of the models in the repository's folders, loaded or not.

        This base class returns an empty list, because a script has no model folders.
        """
        return []

    def is_ambiguous(self, name: str) -> bool:
        """Return whether several repository folders hold a model of this name, and names must be unique."""
        return False

    def loading_versions(self, name: str) -> list[str]:
        """Return the versions of a model that are being loaded and not served yet; "" for an unknown version.

        This base class returns an empty list: the Ops of a script are part of the service from its start.
        """
        return []

    def standing(self, op: str) -> Standing:
        """Return the load state of an Op. op: the Op's name, or the key of a model."""
        standing = self._standings.get(op)
        if standing is not None:
            return standing
        if self._scheduler.op_ready(op):
            return Standing("READY")
        failure = self._scheduler.start_failures.get(op)
        if failure is not None:
            return Standing("UNAVAILABLE", failure)
        return Standing("UNAVAILABLE", "no worker is ready")

    async def load(self, ops: Sequence[str]) -> None:
        """Load Ops (steps of the service) from disk, in new worker processes.

        The old workers of a loaded Op serve until the new workers are ready. Raises NotReady while the
        service starts or stops. Raises LoadFailed if the new workers can't start; the Op then keeps its old
        workers.
        """
        async with self._changing:
            self._scheduler.check_settled()
            for op in ops:
                await self._wait_until_idle({op})
                await self._load(op)

    async def unload_ops(self, ops: Sequence[str]) -> None:
        """Unload Ops (steps of the service): finish admitted requests, then end the worker processes.

        New requests for them are rejected. Raises NotReady while the service starts or stops.
        """
        async with self._changing:
            self._scheduler.check_settled()
            await self._wait_until_idle(set(ops))
            await self._unload(ops, set(ops))

    async def reload_changed(self) -> None:
        """Reload the Ops whose model files or scripts have changed on disk since the Ops were loaded.

        An Op that can't be loaded is logged, and keeps its old workers. Raises NotReady while the service
        starts or stops.
        """
        async with self._changing:
            self._scheduler.check_settled()
            changed = [op for op, pool in self._scheduler.pools.items() if await self._has_changed(op, pool)]
            for op in changed:
                try:
                    await self._load(op)
                except LoadFailed as exc:
                    log.error("Op %s goes on with the workers it had: %s", op, exc.message)
            if not changed:
                log.info("Nothing to load anew: neither the models' files nor the scripts have changed")

    async def _has_changed(self, op: str, pool: WorkerPool) -> bool:
        """Whether a loaded Op must be reloaded: its files have changed on disk, or can't be read."""
        if op in self._standings:
            return False
        try:
            return (await self._plan(op)).files != pool.plan.files
        except ServingError:
            return True  # the load reports the error

    def stop(self) -> None:
        """Cancel all loads in progress, because the service stops. The cancelled loads raise NotReady."""
        cancel_helpers()
        self._stopped.set()

    async def unless_stopped(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of a coroutine that may take long.

        If the service stops first, cancel the coroutine and raise NotReady.
        """
        tasks = asyncio.create_task(work), asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                return tasks[0].result()
            raise NotReady("the service is stopping")
        finally:
            for task in tasks:
                task.cancel()

    @contextlib.asynccontextmanager
    async def _others_go_on(self, names: Collection[str]) -> AsyncIterator[None]:
        """Context manager that releases the lock, so that loads and unloads of other models can run.

        names: Ops and models. Loads and unloads of these names wait for the end of the block.
        """
        self._busy.update(names)
        self._changing.release()
        try:
            yield
        finally:
            try:
                await self._take_lock_back()
            finally:
                self._busy.difference_update(names)
                self._order_ended.notify_all()

    async def _take_lock_back(self) -> None:
        """Acquire the lock again, even if the task is cancelled: the caller's `async with` releases it."""
        acquired = asyncio.ensure_future(self._changing.acquire())
        cancelled: asyncio.CancelledError | None = None
        while not acquired.done():
            try:
                await asyncio.shield(acquired)
            except asyncio.CancelledError as exc:
                cancelled = exc
        if cancelled is not None:
            raise cancelled

    async def _wait_until_idle(self, names: Collection[str]) -> bool:
        """Wait until no other load or unload of these Ops and models is in progress.

        Returns whether it had to wait. Raises NotReady if the service stops meanwhile.
        """
        if self._busy.isdisjoint(names):
            return False
        await self._order_ended.wait_for(lambda: self._busy.isdisjoint(names))
        self._scheduler.check_settled()
        return True

    async def _unload(self, ops: Sequence[str], names: Collection[str]) -> None:
        """Unload those of the Ops that are loaded.

        names: names of Ops and models that no other load or unload may touch meanwhile.
        """
        pools = self._scheduler.pools
        loaded = [op for op in ops if op in pools and op not in self._standings]
        if not loaded:
            return
        self._standings |= dict.fromkeys(loaded, Standing("UNLOADING"))
        for op in loaded:
            self.failures.pop(op, None)
        async with self._others_go_on(names):
            await self._scheduler.withdraw(loaded, self._scheduler.app.config.dag.drain_timeout)
            await asyncio.gather(*(pools[op].unload() for op in loaded))
        self._standings |= dict.fromkeys(loaded, Standing("UNAVAILABLE", "unloaded"))
        log.info("Unloaded: %s", ", ".join(loaded))

    async def _load(self, op: str) -> None:
        """Load one Op from disk and record its state.

        Raises LoadFailed and NotReady; the Op then stays as it was.
        """
        before = self._standings.get(op)
        if before is not None:
            self._standings[op] = Standing("LOADING")
        try:
            new = await self._plan(op)
            try:
                await self.unless_stopped(self._scheduler.pools[op].reload(new))
            except StartFailed as exc:
                raise LoadFailed(op, new.version, exc.message) from exc
        except LoadFailed as exc:
            self.failures[op] = exc
            if before is not None:
                self._standings[op] = Standing("UNAVAILABLE", exc.message)
            raise
        except BaseException:
            if before is not None:
                self._standings[op] = before
            raise
        self.failures.pop(op, None)
        self._standings.pop(op, None)
        self._scheduler.offer(op)
        log.info("Op %s runs what is on disk now%s", op, f", version {new.version}" if new.version else "")
        if new.note:
            log.warning("Op %s: %s", op, new.note)

    async def _plan(self, op: str) -> Plan:
        """Read an Op's configuration and files from disk, as the plan for its new workers.

        Runs in a thread, because folders may be slow to read. Raises LoadFailed.
        """
        try:
            return await asyncio.to_thread(plan, self._scheduler.app, op)
        except (ConfigError, OSError) as exc:
            raise LoadFailed(op, "", str(exc)) from exc


_POLL_PATIENCE_S = 2.0  # polling waits for a model at most this long before the next model


class NoVersions(LoadFailed):
    """Raised when a model to load has no version in its folder.

    The whole server then reports that it is not ready.
    """


class NotPolled(LoadFailed):
    """Raised when a model to load is not in the repository, or its configuration is invalid.

    Triton's load API sends the error as an internal error, "failed to poll from model repository".
    """


class ModelLoader(Repository):
    """Loads and unloads the models of a model repository, together with the models of their ensemble steps.

    Loads and unloads run one at a time. While one of them reads the disk, or waits for workers to start or
    end, loads and unloads of other models continue. A Python model's `auto_complete_config` may hang, and its
    `initialize` may load models itself.
    """

    def __init__(self, scheduler: Scheduler, place: RepositoryPlace) -> None:
        super().__init__(scheduler)
        self._poll_s = place.poll_s
        self._changes = 0  # counts the loads
        self._last_change: dict[str, int] = {}  # the number of a model's last load
        self._invalid: dict[str, tuple[str, str]] = {}  # models on disk that can't be served: version, reason
        # State on disk when polling last loaded the model: a load that fails is not repeated.
        self._polled: dict[str, _OnDisk] = {}
        self._overrides = OverrideFolders()
        folders, defaults = tuple(map(Path, place.folders)), Defaults(*place.defaults)
        self._source = ModelRepository(
            folders,
            place.strict,
            place.strict_devices,
            place.install_requirements,
            defaults,
            backend_directory=place.backend_path,
            resource_limits=place.resource_limits,
            buckets=place.buckets,
            namespacing=place.namespacing,
        )

    def names(self) -> list[str]:
        """Return the names of the models in the repository's folders, loaded or not.

        If a folder can't be read, the error is logged.
        """
        try:
            return self._source.names()
        except ConfigError as exc:
            log.error("%s", exc.message)
            return []

    def is_ambiguous(self, name: str) -> bool:
        return self._source.is_ambiguous(name)

    def register(self, name: str, folder: Path) -> None:
        """Register a folder from which later loads of a model read, whatever name its config.pbtxt has.

        Raises ConfigError for an invalid name or config.pbtxt, and for a name in the repository.
        """
        check_name(name)
        if name in self.names():
            raise ConfigError(f"the repository has a model {name}")
        overrides = {**self._source.overrides, name: (folder, read_renamed_config(folder))}
        self._source = replace(self._source, overrides=overrides)

    def unregister(self, name: str) -> None:
        """Forget the folder of a registered model."""
        overrides = {model: place for model, place in self._source.overrides.items() if model != name}
        self._source = replace(self._source, overrides=overrides)

    def loading_versions(self, name: str) -> list[str]:
        if self._serves(name):
            return []
        return next((versions or [""] for model, versions in self.loading if model == name), [])

    def count_later_workers(self) -> int:
        """Return how many worker processes the models that are not loaded yet would need.

        The number is used to reserve open files for them.
        """
        served = {model.public_name for model in self._scheduler.app.models}
        return sum(map(self._source.count_workers, set(self.names()) - served))

    async def load_model(self, name: str, override: Override | None = None) -> None:
        """Load or reload a model from disk, with the models of its ensemble steps, and serve it.

        override: configuration or files that the client sent in place of those on disk. Raises NotReady while
        the service starts or stops, and LoadFailed if the load fails; in both cases the service stays as it
        was.
        """
        await self._copy_buckets(name)
        async with self._changing:
            self._scheduler.check_settled()
            work = self._overrides.make_folder()
            loading = name, await asyncio.to_thread(self._source.find_versions, name)
            self.loading.append(loading)
            try:
                source = self._source if override is None else override.apply_to(self._source, work)
                served = await self._read_models(name, source)
                await self._serve(name, served)
            except LoadFailed as exc:
                log.error(
                    "failed to load '%s'%s: %s", name, exc.version and f" version {exc.version}", exc.message
                )
                if not self._serves(name):
                    self._note_unavailable(name, exc)
                raise
            finally:
                self.loading.remove(loading)
                self._overrides.release(work)
                await self._remove_unused_overrides()
            log.info("%s", "\n".join([*served.lines, f"Model {name} is loaded"]))
            log_configurations(served.models)

    async def read_model(self, name: str) -> RepositoryContent:
        """Read a model, and the models of its ensemble steps, from disk without loading them.

        Raises LoadFailed for a model that can't be served, and NotReady while the service starts or stops.
        """
        await self._copy_buckets(name)
        async with self._changing:
            self._scheduler.check_settled()
            content = await self._read_models(name, self._source)
        _check_available(name, content)
        return content

    async def _copy_buckets(self, name: str) -> None:
        """Copy changed files from cloud storage buckets before a load. Raises LoadFailed.

        Does nothing with polling, which copies the files itself.
        """
        if not self._source.buckets or self._poll_s:
            return
        try:
            await asyncio.to_thread(self._source.copy_buckets)
        except ConfigError as exc:
            log.error("failed to load '%s': %s", name, exc.message)
            raise LoadFailed(name, "", exc.message) from exc

    async def _poll_buckets(self, errors: dict[str, str]) -> None:
        """Copy changed files from cloud storage buckets. An error is logged once.

        errors: the last error is stored under an empty name.
        """
        try:
            await asyncio.to_thread(self._source.copy_buckets)
        except ConfigError as exc:
            if errors.get("") != exc.message:
                log.error("The served models stay as they are. %s", exc.message)
            errors[""] = exc.message
        else:
            errors.pop("", None)

    async def unload_model(self, name: str, *, dependents: bool = False) -> None:
        """Unload all versions of a model: reject new requests, finish admitted requests, end the workers.

        dependents: whether to unload also the models of an ensemble's steps. Raises NotReady while the
        service starts or stops. Unloading a model that is not loaded is no error.
        """
        async with self._changing:
            self._scheduler.check_settled()
            models, ops = self._unloaded_with(name, dependents)
            while await self._wait_until_idle(_models_in(name, ops)):
                models, ops = self._unloaded_with(name, dependents)
            for part in (*ops, *(model.key for model in models)):
                if self._scheduler.start_failures.pop(part, None) and part in self._standings:
                    self._standings[part] = Standing("UNAVAILABLE", "unloaded")
            if any(not model.op for model in models):
                await self._scheduler.withdraw([model.key for model in models], 0.0)
                self._standings |= {model.key: Standing("UNAVAILABLE", "unloaded") for model in models}
            await self._unload(ops, _models_in(name, ops))
            await self._remove_unused_overrides()

    async def _remove_unused_overrides(self) -> None:
        """Delete files that clients sent with a load request and that no loaded model uses any more."""
        models = self._scheduler.app.models
        used = {Path(model.folder).parent for model in models if not self._scheduler.has_unloaded(model.key)}
        await asyncio.to_thread(self._overrides.remove_all_but, used)

    async def _read_models(self, name: str, source: ModelRepository) -> RepositoryContent:
        """Read a model and the models of its ensemble steps from `source`, in a thread.

        Loads and unloads of other models can run meanwhile. If one of the models was loaded in the meantime,
        they are read again. Raises NotReady if the service stops.
        """
        while True:
            await self._wait_until_idle({name})
            changes = self._changes
            async with self._others_go_on({name}):
                served = await asyncio.to_thread(source.read_models, [name])
            self._scheduler.check_settled()
            names = _names_in(name, served)
            waited = await self._wait_until_idle(names)
            if not waited and all(self._last_change.get(model, 0) <= changes for model in names):
                return served  # otherwise the disk may have changed since

    def _unloaded_with(self, name: str, dependents: bool) -> tuple[list[ServedModel], list[str]]:
        """Return the served versions of a model, and the names of the Ops to unload with the model.

        dependents: whether to include the Ops of all versions of the models of an ensemble's steps.
        """
        all_models = self._scheduler.app.models
        models = [model for model in all_models if model.public_name == name]
        ops = [op for model in models for op in model.graph.ops if model.op or dependents]
        names = {op.rpartition(":")[0] for op in ops}
        # As in Triton, a model is unloaded with all its versions, also those that no step runs.
        return models, list(dict.fromkeys([*ops, *(m.op for m in all_models if m.op and m.name in names)]))

    async def poll(self) -> None:
        """Keep the served models equal to the repository's folders: check for changes every `poll_s` seconds.

        New and changed models are loaded, removed models are unloaded. Runs until cancelled. A slow model
        does not delay the other models.
        """
        errors: dict[str, str] = {}  # last unexpected error of a model, which is logged once
        slow: dict[str, asyncio.Task[None]] = {}  # models that an earlier poll still loads
        try:
            while True:
                await asyncio.sleep(self._poll_s)
                await self._poll_buckets(errors)
                names_on_disk = self.names()
                unique_names = [name for name in names_on_disk if not self._source.is_ambiguous(name)]
                served = {model.public_name for model in self._scheduler.app.models}
                self._forget_all_but(names_on_disk)
                slow = {name: task for name, task in slow.items() if not task.done()}
                for name in (*names_on_disk, *served.difference(names_on_disk)):
                    if name in slow:
                        continue
                    task = asyncio.create_task(self._follow_safely(name, errors, exists=name in unique_names))
                    slow[name] = task
                    await asyncio.wait({task}, timeout=_POLL_PATIENCE_S)
        finally:
            for task in slow.values():
                task.cancel()

    async def _follow_safely(self, name: str, errors: dict[str, str], *, exists: bool) -> None:
        """Load, reload or unload a model to match its folder. Logs errors instead of raising them.

        errors: last unexpected error by model, so that a repeated error is logged once. exists: whether the
        model is on disk.
        """
        try:
            await self._follow(name, exists=exists)
        except (LoadFailed, NotReady):  # logged before
            return
        except Exception as exc:  # an error of one model must not end polling
            if errors.get(name) != repr(exc):
                log.exception("What was changed of model %s is not served", name)
            errors[name] = repr(exc)
        else:
            errors.pop(name, None)

    def _forget_all_but(self, names: Collection[str]) -> None:
        """Drop the polling state of all models except `names`. A model that comes back then counts as new."""
        for table in (self._invalid, self._polled):
            for name in table.keys() - set(names):
                del table[name]

    async def _follow(self, name: str, *, exists: bool) -> None:
        """Load, reload or unload a model to match its folder. Raises NotReady and LoadFailed.

        exists: whether exactly one folder contains the model. As in Triton, a model that is in two
        repositories is unloaded.
        """
        if not exists:
            await self.unload_model(name)
        elif await self._differs(name):
            try:
                await self.load_model(name)
            except NotReady:
                self._polled.pop(name, None)  # it was not tried
                raise

    async def _differs(self, name: str) -> bool:
        """Return whether polling should load the model.

        True if the model on disk differs from the served model, and from its state at the last failed load.
        """
        served = await asyncio.to_thread(self._source.read_models, [name])
        if why := find_error(name, served):
            last_reason = self._invalid.get(name, self._scheduler.app.unavailable.get(name))
            self._invalid[name] = (why.version, why.reason)
            return last_reason != self._invalid[name]
        self._invalid.pop(name, None)
        app = merged(self._scheduler.app, name, served)
        keys = {model.key for model in self._scheduler.app.models if model.public_name == name}
        if keys == {m.key for m in served.models if m.public_name == name} and not self._changed(app, served):
            self._polled.pop(name, None)
            return False
        tried, self._polled[name] = self._polled.get(name), _on_disk(app, served)
        return tried != self._polled[name]

    @contextlib.asynccontextmanager
    async def polling(self) -> AsyncIterator[None]:
        """Context manager that polls the repository in the background, if `poll_s` is set."""
        task = asyncio.create_task(self.poll(), name="poll") if self._poll_s else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()

    def table(self) -> str:
        """Return a text table of all models with their versions and states, for the log at startup."""
        app = self._scheduler.app
        rows = [("Model", "Version", "Status")]
        for model in app.models:
            parts = [self.standing(part) for part in model.graph.ops]
            worst = next((standing for standing in parts if standing.state != "READY"), parts[0])
            status = worst.state if not worst.reason else f"{worst.state}: {worst.reason.splitlines()[0]}"
            rows.append((model.name, model.version, status))
        rows += [(n, v, f"UNAVAILABLE: {why.splitlines()[0]}") for n, (v, why) in app.unavailable.items()]
        rows[1:] = sorted(rows[1:])
        name, version = (max(len(row[at]) for row in rows) for at in (0, 1))
        return "\n".join(f"{row[0]:<{name}}  {row[1]:<{version}}  {row[2]}" for row in rows)

    def standing(self, op: str) -> Standing:
        """Return the load state of an Op or of a model version. op: the Op's name, or the model's key."""
        return self._standings.get(op) or super().standing(op)

    def _serves(self, name: str) -> bool:
        """Whether a version of the model is loaded and accepts requests."""
        models = self._scheduler.app.models
        return any(m.public_name == name and not self._scheduler.has_unloaded(m.key) for m in models)

    async def _serve(self, name: str, served: RepositoryContent) -> None:
        """Start workers for models read from disk, send new requests to them, and end the old workers.

        Raises LoadFailed and NotReady; the service then stays as it was.
        """
        _check_available(name, served)
        app = merged(self._scheduler.app, name, served)
        if error := self._find_resource_error(app, served):
            raise LoadFailed(name, served.models[-1].version, f"Invalid argument: {error}")
        changed = self._changed(app, served)
        async with self._others_go_on(_names_in(name, served)):
            batchers = await self.unless_stopped(self._started(name, app, changed))
        app = merged(self._scheduler.app, name, served)  # includes changes of other orders
        former = await self._scheduler.replace_app(app, batchers)
        self._changes += 1
        self._last_change |= dict.fromkeys(_names_in(name, served), self._changes)
        for model in served.models:
            self._scheduler.offer(model.key)
            for part in (model.key, *model.graph.ops):
                self._standings.pop(part, None)
        if former:
            async with self._others_go_on(_names_in(name, served)):
                await self._scheduler.retire(former, app.config.dag.drain_timeout)

    def _find_resource_error(self, app: App, served: RepositoryContent) -> str:
        """Return the error of a rate-limiter resource that is global in one model and per device in another.

        Empty if there is none. app: the service's description with the models of `served`, as read from disk.
        """
        if self._source.resource_limits is None:
            return ""
        models = (m for m in app.models if m in served.models or not self._scheduler.has_unloaded(m.key))
        return find_kind_error(needs for model in models for needs in model.run_needs)

    def _changed(self, app: App, served: RepositoryContent) -> list[str]:
        """Return the names of the Ops that need new workers because their files or configuration differ.

        app: the service's description with the models of `served`, as read from disk.
        """
        config, pools = self._scheduler.app.config, self._scheduler.pools
        loaded = {op for op in served.sections if op in pools and op not in self._standings}
        configs = {model.op: model.config for model in self._scheduler.app.models}
        new_configs = {model.op: model.config for model in served.models}
        return [
            op
            for op in served.sections
            if op not in loaded
            or op in self._scheduler.start_failures
            or pools[op].given_up
            or config.op[op] != app.config.op[op]
            or configs.get(op) != new_configs[op]
            or _has_other_files(app, op, pools[op])
        ]

    async def _started(self, name: str, app: App, ops: Iterable[str]) -> dict[str, Batcher]:
        """Start worker processes for Ops and wait until all are ready. Return a batcher for each Op.

        The first process of each Op shows whether its files are good, before the other processes start. For
        workers on other nodes, and for a worker that runs all steps of an ensemble, waiting for the first
        process suffices.

        app: the service's description with the new models. If the load fails, raises LoadFailed for the model
        `name` after ending all workers that it has started.
        """
        batchers: dict[str, Batcher] = {}
        try:
            for op in ops:
                batchers[op] = self._scheduler.batcher(op, app)
                await batchers[op].pool.reload(batchers[op].pool.plan)
            if app.config.nodes is None:  # another machine may lack the room for all of them
                awaited = [op for op in batchers if op not in app.joint_ops]
                for op in awaited * 2:  # again, for a worker may die while those of other Ops start
                    await batchers[op].pool.until_complete()
        except (StartFailed, ConfigError, OSError) as exc:
            await asyncio.gather(*(batcher.pool.unload() for batcher in batchers.values()))
            model, _, version = op.rpartition(":")
            version = version if get_public_name(model) == name else ""
            message = str(exc) if isinstance(exc, OSError) else exc.message
            _, _, why = message.partition(" did not start: ")
            raise LoadFailed(name, version, why or message) from exc
        except asyncio.CancelledError:
            await asyncio.gather(*(batcher.pool.stop(0.0) for batcher in batchers.values()))
            raise
        return batchers

    def _note_unavailable(self, name: str, exc: LoadFailed) -> None:
        """Record why a model could not be loaded, for the repository index and the readiness check."""
        app = self._scheduler.app
        unloaded = [part for m in app.models if m.public_name == name for part in (m.key, *m.graph.ops)]
        for part in self._standings.keys() & unloaded:
            self._standings[part] = Standing("UNAVAILABLE", exc.message)
            self._scheduler.start_failures[part] = exc.message
        if unloaded or name not in self.names():
            return
        without = [each for each in app.without_versions if each != name]
        self._scheduler.app = replace(
            app,
            unavailable={**app.unavailable, name: (exc.version, exc.message)},
            without_versions=(*without, name) if isinstance(exc, NoVersions) else tuple(without),
        )


def log_configurations(models: Iterable[ServedModel]) -> None:
    """Log the auto-completed configuration of each model at level DEBUG."""
    for model in models:
        config = json.dumps(model.config, ensure_ascii=False)
        log.debug("Model %s version %s, auto-completed config: %s", model.name, model.version, config)


def _names_in(name: str, served: RepositoryContent) -> set[str]:
    """Return the names of all models that are loaded together with a model, its own included."""
    return {name, *(model.public_name for model in served.models)}


def _models_in(name: str, ops: Iterable[str]) -> set[str]:
    """Return the names of all models that are unloaded together with a model, including its own name.

    ops: the Ops to unload.
    """
    return {name, *(get_public_name(op.rpartition(":")[0]) for op in ops)}


def _has_other_files(app: App, op: str, pool: WorkerPool) -> bool:
    """Whether the files of the Op on disk differ from those that its workers were started with."""
    files = _files(app, op)
    return files is None or files != pool.plan.files  # None: the start reports the error


def _files(app: App, op: str) -> frozenset[FileState] | None:
    """Return the path and state of each file that the Op's workers would use; None if one can't be read."""
    try:
        return plan(app, op).files
    except (ConfigError, OSError):
        return None


class _OnDisk(NamedTuple):
    """Files and configurations of a model and its ensemble steps on disk, to detect changes between polls."""

    models: Mapping[str, object]  # configurations by key
    files: Mapping[str, frozenset[FileState] | None]  # by Op


def _on_disk(app: App, served: RepositoryContent) -> _OnDisk:
    """Return the state on disk of the models that were read.

    app: the service's description with these models.
    """
    models = {model.key: model.config for model in served.models}
    return _OnDisk(models, {op: _files(app, op) for op in served.sections})


def _check_available(name: str, served: RepositoryContent) -> None:
    """Raise LoadFailed or NotPolled if the model `name`, or a model of its steps, can't be served."""
    why = find_error(name, served)
    if why is None:
        return
    kind = NotPolled if why.polled else LoadFailed if why.has_versions else NoVersions
    raise kind(name, why.version, why.reason)


def find_error(name: str, served: RepositoryContent) -> UnavailableModel | None:
    """Return why a model of this name can't be served; None if all models of this name can."""
    return next((why for model, why in served.unavailable.items() if get_public_name(model) == name), None)


def merged(app: App, name: str, served: RepositoryContent) -> App:
    """Return a copy of the service's description in which new models replace the models of the same names.

    name: the model that was loaded; versions that `served` lacks are removed. served: models as read from
    disk. If several repositories have a model of one name, those that can't be read now stay as they are.
    """
    renewed = _names_in(name, served)
    unchanged = [m for m in app.models if m.public_name not in renewed or m.name in served.unavailable]
    models = rebuild_ensembles([*unchanged, *served.models], renewed)
    sections = {op: OpConfig.model_validate(keys, by_alias=True) for op, keys in served.sections.items()}
    needed = _op_names(models)
    ops = {op: section for op, section in {**app.config.op, **sections}.items() if op in needed}
    unavailable: Mapping[str, tuple[str, str]] = {
        model: reason
        for model, reason in app.unavailable.items()
        if get_public_name(model) not in renewed or model in served.unavailable
    }
    config = app.config.model_copy(update={"op": ops})
    choices = {op: choice for op, choice in {**app.choices, **served.choices}.items() if op in needed}
    return replace(app, models=tuple(models), config=config, unavailable=unavailable, choices=choices)


def _op_names(models: Collection[ServedModel]) -> set[str]:
    """Return the names of all Ops that these models use."""
    return {node.op for model in models for node in model.graph.nodes.values()}
