"""How a hook wants to be called: the arguments it takes, of those that this version has to give."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.api.op import Op
from pipeline.errors import ConfigError

_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Arguments:
    """all: what there is to give. places: which of it go by position. by_name: those that go by keyword."""

    all: tuple[str, ...]
    places: tuple[int, ...]
    by_name: tuple[str, ...]

    @classmethod
    def of(cls, op: Op, hook: str, names: tuple[str, ...], needed: int) -> Arguments:
        """Look at an Op's hook once. It may leave out all but the first `needed`, as versions up to 0.6 did,
        whose postprocess took the log_id alone: what follows the first is given where it has the name.

        Raises ConfigError for one that can't be called with them.
        """
        try:
            signature = inspect.signature(getattr(op, hook))
        except ValueError:  # of C; what it takes shows when it is called
            return cls(names, tuple(range(len(names))), ())
        by_name = [p for p in signature.parameters.values() if p.kind in _BY_NAME]
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in by_name)
        for count in range(len(names), needed - 1, -1):
            rest = tuple(n for n in names[count:] if takes_any or any(p.name == n for p in by_name))
            try:
                signature.bind(*names[:count], **dict.fromkeys(rest))
            except TypeError:
                continue
            return cls(names, _places(signature, names, needed, count), rest)
        raise ConfigError(
            f"Op {op.name}: {hook} takes {signature}; it is called with ({', '.join(names)}) and may leave "
            f"out what follows {names[needed - 1]}"
        )

    def call(self, hook: Callable[..., Any], *values: Any) -> Any:
        if len(self.places) == len(values):
            return hook(*values)
        named = {name: values[self.all.index(name)] for name in self.by_name}
        return hook(*[values[place] for place in self.places], **named)


def _places(signature: inspect.Signature, names: tuple[str, ...], needed: int, count: int) -> tuple[int, ...]:
    """The value for each of a hook's `count` positional parameters."""
    taken = list(signature.parameters)[:count]
    places = list(range(count))
    if count < len(names):
        places[needed:] = [
            names.index(name) if name in names[needed:] else place
            for place, name in list(enumerate(taken))[needed:]
        ]
    return tuple(places)
