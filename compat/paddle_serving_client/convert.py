"""`python3 -m paddle_serving_client.convert`: the command line of `inference_model_to_serving`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from paddle_serving_client.io import inference_model_to_serving
from pipeline.errors import ServingError

EXIT_MISTAKE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Convert an exported Paddle model to a serving model.

    Returns the exit code: 0, or 2 if the conversion is not possible.
    """
    parser = argparse.ArgumentParser(
        prog="python3 -m paddle_serving_client.convert",
        description="Make a serving model of an exported Paddle program.",
        epilog="Example: python3 -m paddle_serving_client.convert --dirname inference "
        "--model_filename inference.pdmodel --params_filename inference.pdiparams",
    )
    parser.add_argument("--dirname", required=True, help="folder of the exported program")
    parser.add_argument("--model_filename", help="the program's file in it")
    parser.add_argument("--params_filename", help="the parameters' file in it")
    parser.add_argument("--serving_server", default="serving_server", help="to write (%(default)s)")
    parser.add_argument("--serving_client", default="serving_client", help="to write (%(default)s)")
    parser.add_argument("--encryption", type=_bool, default=False, help="not supported")
    parser.add_argument("--show_proto", type=_bool, default=False, help="print feeds and fetches alone")
    parser.add_argument("--feed_alias_names", help="a,b,...: names for the feeds, in their order")
    parser.add_argument("--fetch_alias_names", help="a,b,...: names for the fetches, in their order")
    options = vars(parser.parse_args(argv))
    for name in ("model_filename", "params_filename"):
        options[name] = options[name] or None
    try:
        inference_model_to_serving(**options)
    except ServingError as exc:
        sys.stderr.write(f"{exc.message}\n")
        return EXIT_MISTAKE
    return 0


def _bool(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "yes", "on")


if __name__ == "__main__":
    sys.exit(main())
