"""Model repositories in S3, which moto's server stands for: start, polling, loads, and a lost permission."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
import requests
import tritonclient.http as v2_http
from tritonclient.utils import InferenceServerException

from tests.support.command_line import paddlewheel
from tests.support.free_ports import free_port
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, wait_until

CONFIG = """
backend: "identity"
input { name: "I" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "O" data_type: TYPE_FP32 dims: [ 2 ] }
"""
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


class Store(NamedTuple):
    """A bucket in moto's server, and the environment of programs that read it."""

    client: Any
    url: str
    address: str  # of the model repository
    environment: dict[str, str]

    def put(self, name: str, text: str) -> None:
        self.client.put_object(Bucket="models", Key=f"served/{name}", Body=text.encode())

    def put_model(self, name: str) -> None:
        self.put(f"{name}/1/weights", name)
        self.put(f"{name}/config.pbtxt", CONFIG)

    def refuse_everyone(self) -> None:
        """From here on only users that the store knows have permission; there is none."""
        requests.post(f"{self.url}/moto-api/reset-auth", data="0", timeout=PATIENCE_S).raise_for_status()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (
        (tmp_path / "moto.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as server,
    ):
        try:
            wait_until(lambda: _answers(url), "moto's server answers")
            client = boto3.client(
                "s3", endpoint_url=url, aws_access_key_id="key", aws_secret_access_key="secret",
                region_name="us-east-1",
            )  # fmt: skip
            client.create_bucket(Bucket="models")
            environment = {**KEYS, "XDG_CACHE_HOME": str(tmp_path / "cache")}
            yield Store(client, url, f"s3://127.0.0.1:{port}/models/served", environment)
        finally:
            server.kill()


def _answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/moto-api/", timeout=PATIENCE_S).status_code == 200
    except requests.ConnectionError:
        return False


def _serve(store: Store, *flags: str) -> RepositoryProcess:
    arguments = [f"--model-repository={store.address}", *flags]
    return RepositoryProcess(arguments=arguments, wait=False, env=store.environment)


def test_a_polled_bucket_is_followed_and_unchanged_files_are_kept(store: Store, tmp_path: Path) -> None:
    store.put_model("first")
    store.put("first/1/", "")  # a folder, as S3's console makes it
    with _serve(store, "--model-control-mode=poll", "--repository-poll-secs=1") as server:
        server.wait_for_log("is ready: http_port")
        assert f"starts with {store.address}" in server.log
        with v2_http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
            assert client.is_model_ready("first")
            (weights,) = (tmp_path / "cache").glob("paddlewheel/buckets/*/first/1/weights")
            inode = weights.stat().st_ino

            store.put_model("second")
            wait_until(lambda: client.is_model_ready("second"), "the new model is served")
            assert weights.stat().st_ino == inode

            store.put("first/1/weights", "renewed")
            wait_until(lambda: weights.read_text("utf-8") == "renewed", "the changed file is fetched")
            assert weights.stat().st_ino != inode

            store.client.delete_object(Bucket="models", Key="served/first/1/weights")
            store.client.delete_object(Bucket="models", Key="served/first/1/")
            store.client.delete_object(Bucket="models", Key="served/first/config.pbtxt")
            wait_until(lambda: not client.is_model_ready("first"), "the deleted model is unloaded")
            assert client.is_model_ready("second")


def test_without_permission_loads_fail_and_loaded_models_serve_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_model("first")
    with _serve(store, "--model-control-mode=explicit", "--load-model=first") as server:
        server.wait_for_log("is ready: http_port")
        with v2_http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
            store.put_model("second")
            client.load_model("second")
            assert client.is_model_ready("second")

            store.put_model("third")
            store.refuse_everyone()
            with pytest.raises(
                InferenceServerException, match=f"--model-repository={store.address} can't be"
            ):
                client.load_model("third")
            assert client.is_model_ready("first") and client.is_model_ready("second")

    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    done = paddlewheel("serve", f"--model-repository={store.address}")
    assert done.returncode != 0
    assert f"--model-repository={store.address} can't be read: PermissionError" in done.stderr
