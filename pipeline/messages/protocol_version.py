"""The version of the messages between front and workers: a hash of the files that define them.

A package that is upgraded under a running service starts workers that read messages otherwise than the front
writes them. Front and worker compare this hash before their first message.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pipeline.api import app, dag, request_options, served_models
from pipeline.messages import frames, messages, values
from pipeline.models import tensor_spec

DEFINITIONS = (
    messages, frames, values, request_options, tensor_spec, dag, app, served_models,
)  # fmt: skip

# The status of a worker that refuses to serve, for its package is of another version than the front. It must
# not change: a front of any version has to know it.
OTHER_VERSION = os.EX_PROTOCOL
PACKAGE_CHANGED = (
    "the installed package has changed since this service was started; running workers serve on, but new "
    "ones can't: restart the service"
)


def _hash_definitions() -> str:
    digest = hashlib.sha256()
    for module in DEFINITIONS:
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()[:16]


# Of the files as they are at the import: later they may be those of another version.
PROTOCOL_VERSION = _hash_definitions()
