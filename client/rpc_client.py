"""Asks the service over gRPC; as a script, classifies the texts it is given."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # a script's own folder is on the path, the package's parent is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from client.environment import use_project_environment

    use_project_environment("grpc", "google", "rich")

import time
from collections.abc import Sequence

from client.errors import RequestRefused, RequestTimedOut
from client.exchange import Answer, Inputs, as_feed
from client.protos.pipeline_service_pb2 import Request, Response
from client.retry import call_with_retries
from client.rpc_channel import RpcChannel

DEFAULT_ADDRESS = "127.0.0.1:8088"
TIMED_OUT_ERR_NO = 6000


class RpcClient:
    """`PipelineService/inference` over one connection of its own; may be shared by threads.

    `timeout_s` bounds a whole `predict`, its retries and their waits included.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        service: str = "bert",
        method: str = "prediction",
        timeout_s: float = 10.0,
        retries: int = 2,
    ) -> None:
        self._channel = RpcChannel(address)
        self._service = service
        self._method = method
        self._timeout_s = timeout_s
        self._retries = retries

    def predict(self, inputs: Inputs) -> Answer:
        """Sends a text, a list of texts or `{key: text}`. Raises a ClientError, see `client.errors`."""
        started = time.monotonic()
        feed = as_feed(inputs)
        request = Request(key=feed.keys(), value=feed.values(), name=self._service, method=self._method)
        response = call_with_retries(
            lambda remaining_s: _read(self._channel.call(request, remaining_s)),
            timeout_s=self._timeout_s,
            retries=self._retries,
        )
        elapsed_ms = (time.monotonic() - started) * 1000
        outputs = dict(zip(response.key, response.value, strict=False))
        return Answer(response.err_no, response.err_msg, outputs, elapsed_ms)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> RpcClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _read(response: Response) -> Response:
    if response.err_no == TIMED_OUT_ERR_NO:
        raise RequestTimedOut(f"the service gave up: {response.err_msg}")
    if response.err_no != 0:
        raise RequestRefused(response.err_no, response.err_msg)
    return response


def main(arguments: Sequence[str] | None = None) -> int:
    from client.script import parse_arguments, run

    options = parse_arguments("rpc_client.py", "--address", DEFAULT_ADDRESS, arguments)
    with RpcClient(
        options.address, options.service, options.method, timeout_s=options.timeout, retries=options.retries
    ) as client:
        return run(client, options)


if __name__ == "__main__":
    sys.exit(main())
