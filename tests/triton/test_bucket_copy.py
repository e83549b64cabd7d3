"""Addresses of buckets, and names of the objects in them. tests/system/test_buckets.py copies files."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.api.buckets import parse_bucket
from pipeline.errors import ConfigError
from pipeline.triton.bucket_copy import list_files


class Listing:
    """A store with these objects."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def ls(self, path: str) -> list[str]:
        return [path]

    def find(self, path: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        return {f"{path}/{name}": {"ETag": f'"{name}"', "size": 7} for name in self.names}


@pytest.mark.parametrize(
    ("address", "endpoint", "path"),
    [
        ("s3://models", "", "models"),
        ("s3://models/a/b/", "", "models/a/b"),
        ("s3://localhost:9000/models/a", "http://localhost:9000", "models/a"),
        ("s3://https://minio.example:443/models", "https://minio.example:443", "models"),
    ],
)
def test_addresses_have_the_forms_that_triton_takes(address: str, endpoint: str, path: str) -> None:
    bucket = parse_bucket(address)
    assert (bucket.address, bucket.endpoint, bucket.path) == (address, endpoint, path)


@pytest.mark.parametrize("address", ["s3://", "s3://Upper/a", "s3://models/../other", "s3://models?x=1"])
def test_another_address_is_refused_with_the_form(address: str) -> None:
    with pytest.raises(ConfigError, match=r"is not of the form s3://\[HOST:PORT/\]BUCKET/FOLDER"):
        parse_bucket(address)


def test_objects_have_their_names_below_the_folder() -> None:
    files = list_files(Listing("bert/1/model.onnx", "bert/1/", ""), "models/served")
    assert {name: (file.key, file.size) for name, file in files.items()} == {
        "bert/1/model.onnx": ("models/served/bert/1/model.onnx", 7)
    }


@pytest.mark.parametrize("name", ["../key", "a/../../key", "a//b", "a/./b"])
def test_an_object_outside_of_the_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="has a name that is no path of a file"):
        list_files(Listing("bert/config.pbtxt", name), "models/served")
