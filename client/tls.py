"""TLS settings of a client: trusted authorities, and the client's own certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True)
class Tls:
    """Paths of the PEM files with which a client uses TLS; clients raise ValueError for an unusable file."""

    ca_file: str | Path | None = None  # trusted authorities, None for the system's
    cert_file: str | Path | None = None  # the client's own certificate
    key_file: str | Path | None = None  # its private key

    def context(self) -> ssl.SSLContext:
        """Return the SSL context of an HTTP client. Raise ValueError for an unusable file."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as exc:
            raise ValueError(f"{self} can't be used: {exc}") from exc
        return context

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the channel credentials of a gRPC client. Raise ValueError for an unusable file.

        Without `ca_file`, gRPC trusts its own list of certificate authorities, not the system's list.
        """
        import grpc

        self.context()  # gRPC itself tells of a bad file only in its log
        ca, key, cert = (
            None if path is None else Path(path).read_bytes()
            for path in (self.ca_file, self.key_file or self.cert_file, self.cert_file)
        )
        return grpc.ssl_channel_credentials(ca, key, cert)

    def __str__(self) -> str:
        return ", ".join(f"{name} {path}" for name, path in vars(self).items() if path is not None) or "TLS"
