"""The import hook that finds our `paddlenlp`, `swig_decoders` and `kaldifeat` if the originals are missing.

paddlenlp_shims.pth imports this module at every start of Python, so that it imports next to nothing itself.
"""

import sys

FOLDERS = {
    "paddlenlp": "paddlenlp",
    "faster_tokenizers": "fast_tokenizer",
    "faster_tokenizer": "fast_tokenizer",
    "fast_tokenizer": "fast_tokenizer",
    "swig_decoders": "../speech_shims/swig_decoders",
    "kaldifeat": "../speech_shims/kaldifeat",
    "_kaldifeat": "../speech_shims/kaldifeat",
}
"""Packages and their folders, relative to this file: a tokenizer package had three names over the years."""

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module is imported by every Python of the environment, which mostly needs none of it
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class ShimFinder:
    """An import finder for `sys.meta_path`.

    It comes last, so that an installed original package is found first.
    """

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the module spec of a module of this compatibility package; None for other modules.

        Raises ModuleNotFoundError for a `paddlenlp` module that it lacks; the message lists the available
        modules.
        """
        top, _, rest = name.partition(".")
        if top not in FOLDERS:
            return None
        from paddlenlp_shims import places

        return places.spec_inside(name, rest) if rest else places.spec_on_top(name, FOLDERS[top], self)


def install() -> None:
    """Append the finder to `sys.meta_path`, unless it is there already."""
    if not any(type(finder).__name__ == ShimFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(ShimFinder())


install()
