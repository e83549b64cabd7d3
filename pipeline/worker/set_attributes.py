"""Which attributes a hook has set on its Op, so that they can be handed to other copies of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MemberDescriptorType
from typing import Any

from pipeline.api.op import Op

_MISSING = object()


class SetAttributes:
    """Notes which attributes are set on an object of one class while it is watched.

    An attribute is set also by the very value that it had, which comparing before and after would not tell:
    so the class is given a `__setattr__` that notes the name, around its own.
    """

    def __init__(self, kind: type[Op]) -> None:
        self._names: dict[int, set[str]] = {}  # by the id of an object while it is watched
        self._slots = frozenset(
            name
            for base in kind.__mro__
            for name, member in vars(base).items()
            if isinstance(member, MemberDescriptorType)
        )
        set_plainly, noted = kind.__setattr__, self._names

        def set_attribute(op: Op, name: str, value: Any) -> None:
            set_plainly(op, name, value)
            if (names := noted.get(id(op))) is not None:
                names.add(name)

        kind.__setattr__ = set_attribute  # type: ignore[method-assign, assignment]

    @contextmanager
    def on(self, op: Op) -> Iterator[set[str]]:
        """Watch the object within the block; the names of what is set on it, complete when that is left."""
        names: set[str] = set()
        before = dict(vars(op))
        self._names[id(op)] = names
        try:
            yield names
        finally:
            self._names.pop(id(op), None)
            # Past __setattr__: by `vars(self)`, as functools.cached_property does it.
            now = dict(vars(op))
            names.update(name for name, value in now.items() if before.get(name, _MISSING) is not value)

    def values(self, op: Op, names: set[str]) -> dict[str, Any]:
        """The object's values of these names, without those that are properties or were deleted again."""
        own = vars(op)
        values = {name: own[name] for name in names if name in own}
        for name in names & self._slots:
            value = getattr(op, name, _MISSING)
            if value is not _MISSING:
                values[name] = value
        return values

    def put(self, op: Op, values: Mapping[str, Any], kept: Collection[str] = ()) -> None:
        """Set these values on the object, but for those in `kept`, without its class being asked."""
        for name, value in values.items():
            if name in kept:
                continue
            if name in self._slots:
                object.__setattr__(op, name, value)
            else:
                vars(op)[name] = value
