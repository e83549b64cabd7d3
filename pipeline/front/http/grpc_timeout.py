"""The Grpc-Timeout header, as the gRPC HTTP/2 protocol defines it: at most eight digits and a unit."""

from __future__ import annotations

from pipeline.errors import InvalidInput

_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


def seconds_of(value: bytes) -> float:
    """The duration in seconds. Raises InvalidInput for anything that is not one."""
    digits, unit = value[:-1], value[-1:]
    if unit not in _UNITS or not digits.isdigit() or len(digits) > 8:
        shown = value[:32].decode("latin-1")
        raise InvalidInput(
            f"header grpc-timeout is {shown!r}; send digits and a unit of H M S m u n, like 500m"
        )
    return int(digits) * _UNITS[unit]
