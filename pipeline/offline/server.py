"""Client of a running server that scores rows, over several KServe v1 connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

from client.addresses import split_addresses
from client.errors import BadAnswer, ClientError, RequestRefused, ServiceUnavailable, TooManyRequests
from client.rows_client import RowsClient
from pipeline.errors import ConfigError
from pipeline.offline.target import Refused, Unanswered

_NOT_THE_ROWS = (TooManyRequests, ServiceUnavailable)
_UNKNOWN = 404


class Server:
    """A model on a running KServe v1 server (this project's or another), as the target of offline scoring."""

    def __init__(
        self, address: str, *, connections: int, timeout_s: float, api_key: str | None = None
    ) -> None:
        """Connect to a server: host:port or a URL, whose path names the model if there are several.

        address: may be a comma-separated list of servers of the same model. `timeout_s` limits each request.
        Raise ConfigError if no model answers there.
        """
        try:
            url, model = _split(address)
            self._client = RowsClient(url, timeout_s=timeout_s, api_key=api_key)
        except ValueError as exc:
            raise ConfigError(f"--service {address}: {exc}") from exc
        self.callers = connections
        self._model = model or self._only(address)
        self.described = f"{url}/{self._model}"
        self.inputs = self._inputs()

    def request_answers(self, rows: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> list[Any]:
        """Send rows as one request with these KServe parameters, and return the answer to each row.

        Raise Refused or Unanswered.
        """
        try:
            return self._client.predict(self._model, rows, parameters)
        except _NOT_THE_ROWS as exc:
            raise Unanswered(f"{self.described}: {exc.err_msg}") from exc
        except RequestRefused as exc:
            if exc.http_status == _UNKNOWN:
                raise Unanswered(f"{self.described}: {exc.err_msg}") from exc
            raise Refused(exc.err_msg) from exc
        except ClientError as exc:
            raise Unanswered(f"{self.described}: {exc}") from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _only(self, address: str) -> str:
        """Return the name of the only service at the address. Raise ConfigError if there are several."""
        try:
            services = self._client.services()
        except ClientError as exc:
            raise ConfigError(f"--service {address}: {exc}") from exc
        if len(services) != 1:
            problem = f"there are {', '.join(services)}" if services else "no service tells its name"
            raise ConfigError(f"--service {address}: {problem}; name the one to ask, as in {address}/NAME")
        return services[0]

    def _inputs(self) -> Mapping[str, str]:
        try:
            inputs = self._client.metadata(self._model).get("inputs", ())
            return {str(tensor["name"]): str(tensor["datatype"]) for tensor in inputs}
        except RequestRefused as exc:
            if exc.http_status == _UNKNOWN:  # no KServe v2, or no such model, which the first request reports
                return {}
            raise ConfigError(f"--service {self.described}: {exc.err_msg}") from exc
        except (BadAnswer, KeyError, TypeError):
            return {}
        except ClientError as exc:
            raise ConfigError(f"--service {self.described}: {exc}") from exc


def _split(address: str) -> tuple[str, str]:
    """Split an address into the URLs of the servers and the model's name, which may be empty.

    Raises ValueError for addresses with different names.
    """
    parts = [urlsplit(part if "//" in part else f"http://{part}") for part in split_addresses(address)]
    models = dict.fromkeys(part.path.strip("/") for part in parts)
    if len(models) > 1:
        raise ValueError(f"the addresses name the models {', '.join(models)}; name the same model in each")
    return ",".join(f"{part.scheme}://{part.netloc}" for part in parts), next(iter(models))
