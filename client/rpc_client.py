"""The gRPC client of a service; as a script, sends the texts of its command line and prints the answer."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # a script's own folder is on the path, the package's parent is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from client.project_environment import use_project_environment

    use_project_environment("grpc", "google", "rich")

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence

from client.addresses import split_addresses
from client.errors import TIMED_OUT_ERR_NO, RequestRefused, RequestTimedOut
from client.exchange import Client, Reply
from client.protos.pipeline_service_pb2 import Request, Response
from client.rpc_channel import RpcChannel
from client.tls import Tls

DEFAULT_ADDRESS = "127.0.0.1:8088"


class RpcClient(Client):
    """Client of a service's key/value protocol over gRPC: `PipelineService/inference`, `inference_stream`.

    address: one or several, separated by commas. Addresses are used in turn; if an address is unreachable,
    the request is sent to the next address. Clients do not share connections. Raises ValueError for an
    invalid `address`, `tls` or header.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        service: str = "bert",
        method: str = "prediction",
        timeout_s: float = 10.0,
        retries: int = 2,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(timeout_s, retries)
        self._channel = RpcChannel(*split_addresses(address), tls=tls, api_key=api_key, headers=headers)
        self._service = service
        self._method = method

    def _sender(self, feed: dict[str, str]) -> Callable[[float], Reply]:
        request = self._build_request(feed)
        return lambda remaining_s: read_key_value_message(self._channel.call(request, remaining_s))

    def _streamer(self, feed: dict[str, str]) -> Callable[[float], Generator[Reply, None, None]]:
        request = self._build_request(feed)

        def stream(remaining_s: float) -> Generator[Reply, None, None]:
            with contextlib.closing(self._channel.stream(request, remaining_s)) as responses:
                for response in responses:
                    yield read_key_value_message(response)

        return stream

    def _build_request(self, feed: dict[str, str]) -> Request:
        return Request(key=feed.keys(), value=feed.values(), name=self._service, method=self._method)

    def close(self) -> None:
        self._channel.close()


def read_key_value_message(response: Response) -> Reply:
    """Return the message and the outputs by name from a gRPC response of the key/value protocol.

    Raises RequestTimedOut or RequestRefused for an error response.
    """
    if response.err_no == TIMED_OUT_ERR_NO:
        raise RequestTimedOut(f"the service gave up: {response.err_msg}")
    if response.err_no != 0:
        raise RequestRefused(response.err_no, response.err_msg)
    return response.err_msg, dict(zip(response.key, response.value, strict=False))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script: send the texts of its command line over gRPC, and return the exit code."""
    from client.client_command import run

    return run(RpcClient, "rpc_client.py", "--address", DEFAULT_ADDRESS, arguments)


if __name__ == "__main__":
    sys.exit(main())
