"""The fetches of a predictor: which of the model's are returned, and under which names."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace

from pipeline.errors import ConfigError
from pipeline.models.signature import Variable

log = logging.getLogger(__name__)

# What Paddle 2 and Paddle 3 call the outputs of a program, by number, where nobody has named them.
_OLD_FETCH = re.compile(r"save_infer_model/scale_(\d+)(?:\.tmp_\d+)?")
_NUMBERED_FETCH = re.compile(rf"{_OLD_FETCH.pattern}|fetch_name_\d+")


def select_fetches(fetches: Sequence[Variable], aliases: Sequence[str]) -> tuple[Variable, ...]:
    """The fetches of these aliases, all when empty; one under its old name has that for its alias.

    Raises ConfigError for one the model lacks.
    """
    selected = []
    for alias in aliases:
        found = find_fetch(fetches, alias)
        if found is None:
            known = ", ".join(variable.alias for variable in fetches)
            raise ConfigError(f"fetch_list: the model has no {alias!r}, only {known}")
        if found.alias != alias:
            log.info("fetch_list: %s is the output that the model calls %s", alias, found.alias)
        selected.append(replace(found, alias=alias))
    return tuple(selected) or tuple(fetches)


def find_fetch(fetches: Sequence[Variable], name: str) -> Variable | None:
    """The fetch of this alias, or None.

    Paddle 2 called the first output `save_infer_model/scale_0.tmp_0` or `.tmp_1`, Paddle 3 calls it
    `fetch_name_0`: a script that asks by an old name still finds it, unless the model's have names of their
    own.
    """
    found = next((variable for variable in fetches if variable.alias == name), None)
    old = _OLD_FETCH.fullmatch(name)
    if found is not None or old is None or int(old[1]) >= len(fetches):
        return found
    numbered = all(_NUMBERED_FETCH.fullmatch(variable.alias) for variable in fetches)
    return fetches[int(old[1])] if numbered else None
