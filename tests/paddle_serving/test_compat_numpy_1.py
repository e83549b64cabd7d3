"""NumPy 1's names in a worker: there for all code that asks for them."""

from __future__ import annotations

import subprocess
import sys

from tests.support.service_process import ROOT

CODE = """
import logging, sys
sys.path.insert(0, {root!r})
logging.basicConfig(format="%(message)s", stream=sys.stdout)
from pipeline.paddle_serving.numpy_1 import install_numpy_1_names
import numpy as np

install_numpy_1_names()
install_numpy_1_names()
{body}
"""


def lines(body: str) -> list[str]:
    """What the code prints, with the names installed."""
    code = CODE.format(root=str(ROOT), body=body)
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_name_that_is_read_is_what_it_was_and_is_told_of_once() -> None:
    told, *printed = lines("""
for _ in range(3):
    array = np.zeros(2, np.int)
print(array.dtype, np.float(3), np.object, np.str, np.NaN, np.float_ is np.float64)
from numpy import complex as c
print(c)
""")
    assert "uses numpy.int of NumPy 1" in told
    assert printed == ["int64 3.0 <class 'object'> <class 'str'> nan True", "<class 'complex'>"]


def test_functions_that_are_gone_compute_what_they_did() -> None:
    _, *printed = lines("""
print(np.bool8 is np.bool_, np.asfarray([1, 2], np.float32).dtype, np.asfarray([1], int).dtype)
print(np.in1d([[1, 2], [3, 4]], [2, 3]), np.in1d([1, 2], [2], invert=True), np.trapz([1, 2, 3]))
print(np.msort([[3, 1], [2, 5]]).tolist())
print(np.find_common_type([np.int32, np.float32], []), np.longfloat is np.longdouble)
""")
    assert printed == [
        "True float32 float64",
        "[False  True  True False] [ True False] 4.0",
        "[[2, 1], [3, 5]]",
        "float64 True",
    ]


def test_who_sets_a_name_where_it_is_missing_finds_it_there() -> None:
    _, *printed = lines("""
if not hasattr(np, "int"):
    np.int = "set"
print(np.int, getattr(np, "float", "none"), np.__version__[0])
""")
    assert printed == ["<class 'int'> <class 'float'> 2"]


def test_a_name_that_never_was_stays_an_error() -> None:
    body = """
try:
    np.nothing
except AttributeError as exc:
    print(exc)
"""
    assert lines(body) == ["module 'numpy' has no attribute 'nothing'"]


def test_fromstring_reads_bytes_into_an_array_of_its_own_and_text_as_ever() -> None:
    told, *printed = lines("""
array = np.fromstring(bytes([1, 2, 3]), np.uint8)
array[0] = 9
print(array, np.fromstring("1 2", sep=" "), np.fromstring(b"abcd", dtype="S1", count=2))
""")
    assert "uses numpy.fromstring of bytes" in told
    assert printed == ["[9 2 3] [1. 2.] [b'a' b'b']"]
