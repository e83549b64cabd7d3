"""Forms: the answers that dialects have, as a worker renders them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from client.protos.pipeline_service_pb2 import Response
from pipeline.errors import ConfigError
from pipeline.messages.values import Part, Unread, will_read
from pipeline.models.tensor_spec import TensorSpec
from pipeline.plugins import Plugin, call_plugin, load

Render = Callable[[Mapping[str, Any], Any, str, Sequence[TensorSpec]], list[Part]]
"""Renders the complete answer, in as many parts as the front's half of the dialect expects.

Called with an Op's output, the request's response options, the model's version, and the tensors that the Op
declares. Raises ServingError.
"""


class Form(NamedTuple):
    """One kind of answer: how a worker writes it."""

    render: Render
    # Of the Response that an app's own ResponseOp made; None: what it holds is rendered.
    render_message: Callable[[Response], list[Part]] | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerPart:
    """The worker's half of a dialect: its renderers of answers, and its values that the worker decodes."""

    forms: Mapping[str, Form]  # by the names that requests say, as in "lines.text"
    unread: Collection[type[Unread]] = ()  # the values that the front leaves to the worker


def load_forms(dialects: Sequence[Plugin]) -> dict[str, Form]:
    """Load the forms of the dialects' answers, by name, and the decoders of their unread values.

    The front has looked for them: reading the metadata of all installed packages takes some 10 ms, and both
    must have the same ones. Raises ConfigError for one that can't be loaded, and for a form that two have.
    """
    forms: dict[str, Form] = {}
    owners: dict[str, Plugin] = {}
    for plugin in dialects:
        part: WorkerPart = call_plugin(plugin, load(plugin).worker)
        for name, form in part.forms.items():
            if name in forms:
                raise ConfigError(
                    f"dialect {plugin.name} of {plugin.distribution} has a form {name!r}, as has dialect "
                    f"{owners[name].name} of {owners[name].distribution}; uninstall one of the two"
                )
            forms[name], owners[name] = form, plugin
        will_read(part.unread)
    return forms
