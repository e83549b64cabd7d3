"""The common part of the clients that send audio to a model: requests over gRPC, and command-line options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Self

from client.addresses import SEVERAL, call_in_turn, split_addresses
from client.connection_options import ConnectionOptions
from client.endpoints import V2_METHOD_PATH
from client.options import add_options
from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse
from client.rpc_channel import RpcChannel
from client.rpc_client import DEFAULT_ADDRESS
from client.tls import Tls


class AudioClient:
    """gRPC client (KServe v2) of an audio model that returns one output tensor per request.

    address: one or several, separated by commas. If an address is unreachable, a recording or the start of a
    stream is sent to the next address. Later requests of a stream go to the same address, because the service
    keeps the stream's state. Raises ValueError for an invalid `address`, `tls` or header.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        tls: Tls | None,
        api_key: str | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        """Prepare a client without connecting. timeout_s: limit for each request."""
        self._channels = [
            RpcChannel(address, tls=tls, api_key=api_key, headers=headers)
            for address in split_addresses(address)
        ]
        self._current = 0  # number of the channel that answered last
        self._timeout_s = timeout_s

    def infer(self, request: ModelInferRequest, output_name: str, datatype: str) -> bytes:
        """Send a request and return the bytes of an output tensor; empty if the response has no such output.

        Raises a ClientError.
        """
        request.outputs.add(name=output_name)
        response = ModelInferResponse.FromString(self._send(request))
        for output, content in zip(response.outputs, response.raw_output_contents, strict=False):
            if output.name == output_name and output.datatype == datatype:
                return content
        return b""

    def _send(self, request: ModelInferRequest) -> bytes:
        message, first, parameters = request.SerializeToString(), self._current, request.parameters
        follows = "sequence_id" in parameters and not parameters["sequence_start"].bool_param

        def send(number: int, remaining_s: float) -> bytes:
            answer = self._channels[number].call_bytes(V2_METHOD_PATH, message, remaining_s)
            self._current = number
            return answer

        count = 1 if follows else len(self._channels)
        numbers = [(first + offset) % len(self._channels) for offset in range(count)]
        return call_in_turn([partial(send, number) for number in numbers], self._timeout_s)

    def close(self) -> None:
        """Close the connections to the service."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def create_parser(prog: str, description: str, example: str, timeout_s: float) -> argparse.ArgumentParser:
    """Return a parser with the options that all scripts share which send a wav file.

    timeout_s: the default time-out.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description, epilog=f"example: {example}")
    parser.add_argument("file", metavar="WAV", help="mono, 16 bits, 16 kHz")
    parser.add_argument(
        "--address", default=DEFAULT_ADDRESS, help=f"of the service, {SEVERAL} (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=timeout_s,
        metavar="SECONDS",
        help=f"for each request (default: {timeout_s:g})",
    )
    add_options(parser, ConnectionOptions)
    return parser
