"""Certificate files of the `tls` section in config.yml: checks, and SSL contexts for the server's ports."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple, NoReturn

from pipeline.config.config_file import TlsConfig
from pipeline.errors import ConfigError

PASSPHRASE_MARKS = (b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")
FILES = {"cert": b"BEGIN CERTIFICATE", "key": b"PRIVATE KEY", "client_ca": b"BEGIN CERTIFICATE"}


class Pem(NamedTuple):
    """Contents of the server's certificate, private key and client CA files, in PEM format."""

    cert: bytes
    key: bytes
    client_ca: bytes | None  # None: clients need no certificate


class Certificates:
    """The server's certificates, as read at start-up or by the last `reload`.

    `context` is for HTTP, `pem` for gRPC. A reload replaces both objects.
    """

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._load_files()

    def reload(self) -> None:
        """Read the certificate files again.

        Raises ConfigError for invalid files, and keeps the loaded ones.
        """
        flaws = check_tls(self._tls)
        if flaws:
            raise ConfigError("\n".join(flaws))
        self._load_files()

    def _load_files(self) -> None:
        tls = self._tls
        client_ca = None if tls.client_ca is None else Path(tls.client_ca).read_bytes()
        self.pem = Pem(Path(tls.cert).read_bytes(), Path(tls.key).read_bytes(), client_ca)
        self.context = server_context(tls)


def check_tls(tls: TlsConfig) -> list[str]:
    """Return an error message for each invalid certificate file, and for a key that does not match."""
    flaws = [flaw for name in FILES if (flaw := _check_file(tls, name))]
    if flaws:
        return flaws
    try:
        server_context(tls)
    except ssl.SSLError as exc:
        return [_explain_ssl_error(exc, tls)]
    return []


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return an SSL context for serving HTTP/1.1 over TLS 1.2 and 1.3.

    Raises ssl.SSLError, see `check_tls`.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.cert, tls.key, password=_no_passphrase)
    context.set_alpn_protocols(["http/1.1"])
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_file(tls: TlsConfig, name: str) -> str | None:
    path = getattr(tls, name)
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
    except OSError as exc:
        return f"tls.{name}: {path} can't be read ({exc.strerror}); name a PEM file that this user may read"
    if FILES[name] not in content:
        kind = "private key" if name == "key" else "certificate"
        return f"tls.{name}: {path} holds no {kind} in PEM form (-----BEGIN ...-----)"
    if name == "key" and any(mark in content for mark in PASSPHRASE_MARKS):
        return (
            f"tls.key: {path} is locked with a passphrase; store it without: openssl pkey -in {path} -out ..."
        )
    return None


def _explain_ssl_error(exc: ssl.SSLError, tls: TlsConfig) -> str:
    if exc.reason == "KEY_VALUES_MISMATCH" or exc.reason == "KEY_TYPE_MISMATCH":
        return f"tls.key: {tls.key} is not the private key of the first certificate in {tls.cert}"
    files = " or ".join(filter(None, (tls.cert, tls.key, tls.client_ca)))
    return f"tls: {files} is damaged ({exc.reason or exc}); copy it again from where it was made"


def _no_passphrase() -> NoReturn:
    raise ssl.SSLError("locked with a passphrase")  # OpenSSL would prompt on the terminal
