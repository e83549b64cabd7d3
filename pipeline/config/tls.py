"""The files of `tls` in config.yml: what is wrong with them, and what the listeners make of them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple, NoReturn

from pipeline.config.config_file import TlsConfig
from pipeline.errors import ConfigError

PASSPHRASE_MARKS = (b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")
FILES = {"cert": b"BEGIN CERTIFICATE", "key": b"PRIVATE KEY", "client_ca": b"BEGIN CERTIFICATE"}


class Pem(NamedTuple):
    """What the files hold; client_ca is None where clients need no certificate."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


class Certificates:
    """What the listeners show and trust: the files as they were at the start, or at the last `reload`.

    context: for HTTP. pem: for gRPC. Each is another object after a reload.
    """

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._load_files()

    def reload(self) -> None:
        """Read the files again. Raises ConfigError for files that can't be used; then all stays as it was."""
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
    """One sentence for each file that can't be used, and for a key that belongs to another certificate."""
    flaws = [flaw for name in FILES if (flaw := _flaw_of_file(tls, name))]
    if flaws:
        return flaws
    try:
        server_context(tls)
    except ssl.SSLError as exc:
        return [_explained(exc, tls)]
    return []


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """TLS 1.2 and 1.3, HTTP/1.1. Raises ssl.SSLError for what `check_tls` tells."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.cert, tls.key, password=_no_passphrase)
    context.set_alpn_protocols(["http/1.1"])
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _flaw_of_file(tls: TlsConfig, name: str) -> str | None:
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


def _explained(exc: ssl.SSLError, tls: TlsConfig) -> str:
    if exc.reason == "KEY_VALUES_MISMATCH" or exc.reason == "KEY_TYPE_MISMATCH":
        return f"tls.key: {tls.key} is not the private key of the first certificate in {tls.cert}"
    files = " or ".join(filter(None, (tls.cert, tls.key, tls.client_ca)))
    return f"tls: {files} is damaged ({exc.reason or exc}); copy it again from where it was made"


def _no_passphrase() -> NoReturn:
    raise ssl.SSLError("locked with a passphrase")  # OpenSSL would ask for one on the terminal
