"""Imports PaddleNLP's models without the rest of PaddleNLP, in the conversion environment."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import metadata
from types import ModuleType

from pipeline.errors import ConversionError


def import_models() -> ModuleType:
    """Import and return `paddlenlp.transformers`, PaddleNLP's model classes.

    This avoids `import paddlenlp`, which would also import its trainer, data sets and Taskflow, with pandas
    and PyArrow.
    """
    if "paddlenlp" not in sys.modules:
        spec = importlib.util.find_spec("paddlenlp")
        if spec is None:
            raise ConversionError("PaddleNLP can't be imported; install it with `make convert-env`.")
        package = importlib.util.module_from_spec(spec)
        vars(package)["__version__"] = metadata.version("paddlenlp")
        sys.modules["paddlenlp"] = package
        importlib.import_module("paddlenlp.data")  # first: either imports the other
    return importlib.import_module("paddlenlp.transformers")
