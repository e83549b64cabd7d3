"""Ops without a model: usual for one with hooks of its own, as in Paddle Serving, and else likely a slip."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.api.op import Op, RequestOp, ResponseOp, overrides
from pipeline.config.config_file import ServiceConfig

_HOOKS = ("preprocess", "process", "postprocess", "preprocess_batch", "postprocess_batch")


def notes_of_missing_models(source: str, ops: Mapping[str, Op], config: ServiceConfig) -> list[str]:
    """A sentence for each Op that seems to lack its model; source: where the configuration is from."""
    targets = {target.name for op in ops.values() for target in op.jump_to_ops}  # may pass on what they get
    notes = []
    for name, op in ops.items():
        section = config.op[name]
        conf = section.local_service_conf
        if section.has_model:
            continue
        own = [hook for hook in _HOOKS if overrides(op, hook)]
        key = f"{source}: op.{name}.local_service_conf"
        if conf is not None and "process" not in own:
            notes.append(f"{key} has no model_config, so that the Op runs no model; name its directory there")
        elif not own and name not in targets and not isinstance(op, RequestOp | ResponseOp):
            notes.append(
                f"{key}.model_config is missing, and {type(op).__name__} overrides no hook: the Op passes "
                "its input on; name the directory of its model there"
            )
    return notes
