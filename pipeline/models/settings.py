"""How a model wants to be run: keys of `local_service_conf` in its serving.yml, where config.yml has none."""

from __future__ import annotations

import logging

from pydantic import ValidationError

from pipeline.config.config_file import LocalServiceConf
from pipeline.errors import ConfigError
from pipeline.models.serving_model import ADDITIONS, ServingModel

log = logging.getLogger(__name__)

KEY = "local_service_conf"
SETTINGS = ("ir_optim", "precision")


def merge_model_settings(model: ServingModel, conf: LocalServiceConf) -> LocalServiceConf:
    """`conf` with the settings in the model's serving.yml; a key that config.yml has goes first.

    A form of the model in a lower precision has that in its program: its engine computes what is written
    there, and fuses operators for it. Raises ConfigError for other keys than SETTINGS, and for values that
    config.yml could not have.
    """
    if model.lowered:
        return conf.model_copy(update={"precision": "fp32", "ir_optim": True})
    given = model.additions.get(KEY)
    if given is None:
        return conf
    where = f"{model.directory / ADDITIONS}: {KEY}"
    if not isinstance(given, dict) or given.keys() - set(SETTINGS):
        raise ConfigError(f"{where} may have {' and '.join(SETTINGS)}: put other keys in config.yml")
    try:
        checked = LocalServiceConf.model_validate(given)
    except ValidationError as exc:
        error = exc.errors()[0]
        raise ConfigError(f"{where}.{error['loc'][0]}: {error['input']!r}: {error['msg']}") from exc
    wanted = {key: getattr(checked, key) for key in given}
    for key, value in wanted.items():
        if key in conf.model_fields_set and getattr(conf, key) != value:
            log.warning(
                "%s.%s is %s, but config.yml has %s, which goes first", where, key, value, getattr(conf, key)
            )
    return conf.model_copy(update={key: wanted[key] for key in wanted.keys() - conf.model_fields_set})
