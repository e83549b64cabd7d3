"""Runs ONNX models with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime

from pipeline.engines.base import PredictorConf
from pipeline.engines.described import feeds_of_graph
from pipeline.engines.device import resolve_device
from pipeline.engines.dynamic_shape import DynamicShapes, Shapes
from pipeline.engines.feeds import Array, as_texts, check_feeds, check_forms, shares_runs
from pipeline.engines.fetches import select_fetches
from pipeline.engines.measured import measured_fetches
from pipeline.engines.onnxruntime.onnx_config import refuse_unavailable, session_options, session_plans
from pipeline.engines.onnxruntime.onnx_errors import error_sentence, load_sentence, looked_up
from pipeline.engines.refusals import refusal
from pipeline.errors import ConfigError, InvalidInput, ModelFailed
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel


class OnnxPredictor:
    """A session of an ONNX model, or one for each length class of TensorRT.

    It releases the GIL while it runs, and takes any number of threads.
    """

    def __init__(
        self,
        model: ServingModel,
        conf: PredictorConf,
        *,
        instance_index: int = 0,
        dynamic_shapes: DynamicShapes | None = None,
        fetch_list: Sequence[str] = (),
    ) -> None:
        facts = inspect_onnx(model.program)
        self.feeds = feeds_of_graph(model, facts.feeds, facts.fetches)
        self.fetches = select_fetches(model.fetches, fetch_list or conf.fetch_list)
        device = resolve_device(conf)
        refuse_unavailable(device)
        plans = session_plans(
            model, conf, device, instance_index=instance_index, dynamic_shapes=dynamic_shapes
        )
        self._sessions = [(plan.shapes, _session(model, conf, plan.providers)) for plan in plans]
        self._texts = [feed.alias for feed in self.feeds if feed.dtype == "string"]
        self._names = {feed.alias: feed.name for feed in self.feeds}
        self._outputs = {fetch.alias: fetch.name for fetch in self.fetches}
        self.fetches = measured_fetches(model.program, self, self.fetches, facts.fetches, self.run)
        self.merges = shares_runs(model.program, facts.finder, (*self.feeds, *self.fetches))

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays by alias in and out. Raises InvalidInput, or ModelFailed with ONNX Runtime's reason."""
        sessions = self._sessions
        if not sessions:
            raise ModelFailed("the predictor is closed")
        checked = check_feeds(self.feeds, feeds)
        for alias in self._texts:
            checked[alias] = as_texts(alias, checked[alias])
        named = {name: checked[alias] for alias, name in self._names.items()}
        session = _session_for(sessions, {name: array.shape for name, array in named.items()})
        try:
            fetched = session.run(list(self._outputs.values()), named)
        except Exception as exc:
            reason = error_sentence(exc)
            raise refusal("ONNX Runtime", self.feeds, checked, reason, looked_up(exc)) from exc
        return dict(zip(self._outputs, map(np.asarray, fetched), strict=True))

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for feeds whose names, types, shapes or dtypes are not the model's."""
        check_forms(self.feeds, feeds)

    def close(self) -> None:
        """Free the model as soon as no run is under way."""
        self._sessions = []


def _session_for(
    sessions: Sequence[tuple[DynamicShapes | None, onnxruntime.InferenceSession]], shapes: Shapes
) -> onnxruntime.InferenceSession:
    """The first session whose ranges hold these shapes of the feeds. Raises InvalidInput where none does.

    One alone takes all shapes, or says itself which it does not.
    """
    if len(sessions) == 1:
        return sessions[0][1]
    for described, session in sessions:
        if described is None or described.hold(shapes):
            return session
    given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    raise InvalidInput(f"none of the {len(sessions)} TensorRT profiles (tensorrt.shapes) takes {given}")


def _session(
    model: ServingModel, conf: PredictorConf, asked: Sequence[tuple[str, dict[str, str]]]
) -> onnxruntime.InferenceSession:
    try:
        session = onnxruntime.InferenceSession(
            str(model.program), sess_options=session_options(conf), providers=list(asked)
        )
    except Exception as exc:
        raise ConfigError(load_sentence(model.program, exc)) from exc
    if session.get_providers()[0] != asked[0][0]:  # it goes on with the next, in silence
        raise ConfigError(
            f"{asked[0][0]} can't be started on this machine: see that its libraries and a driver are found "
            "(paddlewheel doctor), or set device_type: 0"
        )
    session.disable_fallback()  # a failed run would be tried on the CPU, by a new session
    return session
