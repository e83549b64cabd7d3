"""Model repositories in S3: `--model-repository=s3://BUCKET/FOLDER`, in the forms that Triton takes."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from pipeline.errors import ConfigError
from pipeline.process.folders import cache_folder

_ADDRESS = re.compile(
    r"s3://(?:(?P<scheme>https?://)?(?P<host>[0-9A-Za-z.-]+:\d+)/)?"
    r"(?P<bucket>[0-9a-z][0-9a-z.-]+)(?P<folder>(?:/[^/?#]+)*)/?"
)
_NAME_CHARACTERS = 32  # of the folder of a copy


class Bucket(NamedTuple):
    """A model repository in a storage bucket, and the folder of its copy on this machine."""

    address: str  # as the command line names it
    endpoint: str  # URL of the service; empty: AWS, or the endpoint in the environment
    path: str  # BUCKET/FOLDER
    folder: str  # of the copy


def parse_bucket(address: str) -> Bucket:
    """Parse s3://BUCKET/FOLDER, s3://HOST:PORT/BUCKET/FOLDER or s3://https://HOST:PORT/BUCKET/FOLDER.

    Raises ConfigError for another form.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or ".." in match["folder"].split("/"):
        raise ConfigError(f"{address!r} is not of the form s3://[HOST:PORT/]BUCKET/FOLDER")
    endpoint = f"{match['scheme'] or 'http://'}{match['host']}" if match["host"] else ""
    path = match["bucket"] + match["folder"]
    name = hashlib.sha256(f"{endpoint} {path}".encode()).hexdigest()[:_NAME_CHARACTERS]
    return Bucket(address, endpoint, path, str(cache_folder("buckets") / name))
