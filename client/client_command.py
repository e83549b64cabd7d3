"""The command line of `http_client.py` and `rpc_client.py`: sends texts, prints the answer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from client.addresses import SEVERAL
from client.connection_options import ConnectionOptions
from client.errors import ClientError
from client.exchange import Answer, Client
from client.options import add_options, argument, option, parse_options, switch
from client.values import Value, parse_value

EXAMPLES = """examples:
  python3 client/{name} "央行宣布下调存款准备金率"
  python3 client/{name} "国足客场两球取胜" "新款电动车开启预售"
  python3 client/{name} {address_option} {default} --service bert --json "国足客场两球取胜"
  python3 client/{name} --service news --as text "新款电动车开启预售"
"""


@dataclass(frozen=True, kw_only=True)
class SendOptions(ConnectionOptions):
    """The command-line options of a client script, except the address of the service."""

    texts: tuple[str, ...] = argument(nargs="+", metavar="TEXT", help="sent together, as one request")
    service: str = option(default="bert", help="its name (default: %(default)s)")
    method: str = option(default="prediction", help="(default: %(default)s)")
    timeout: float = option(default=10.0, metavar="SECONDS", help="for the whole call (default: 10)")
    retries: int = option(default=2, help="further tries when unavailable or busy (default: 2)")
    keys: tuple[str, ...] = option(
        "--as",
        default=(),
        metavar="NAME",
        help="what a text is called; again for the next (default: 0, 1, ...)",
    )
    json: bool = switch(help="print the answer as JSON, values as they came")
    address: str

    def __post_init__(self) -> None:
        if len(self.keys) not in (0, len(self.texts)):
            raise ValueError(f"--as is given {len(self.keys)} times for {len(self.texts)} texts; name each")


def parse_arguments(
    name: str, address_option: str, default: str, arguments: Sequence[str] | None
) -> SendOptions:
    """Parse the command line of a client script; exit with a message if it is wrong.

    name: file name of the script. address_option: "--url" or "--address", with its default. arguments:
    command-line arguments; None for those of the process.
    """
    parser = argparse.ArgumentParser(
        prog=name,
        description="Send texts to a running service and print its answer.",
        epilog=EXAMPLES.format(name=name, address_option=address_option, default=default),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        address_option,
        dest="address",
        metavar=address_option.strip("-").upper(),
        default=default,
        help=f"where the service is, {SEVERAL} (default: %(default)s)",
    )
    add_options(parser, SendOptions)
    values = parser.parse_args(arguments)
    try:
        return parse_options(SendOptions, values, address=values.address)
    except ValueError as error:
        parser.error(str(error))


def plain_console(*, stderr: bool = False) -> Console:
    """Return a rich console that prints texts verbatim: "[red]" and ":car:" in a text are not markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def run(
    client_class: Callable[..., Client],
    name: str,
    address_option: str,
    default: str,
    arguments: Sequence[str] | None,
) -> int:
    """Run a client script: send the texts of the command line, print the answer, return the exit code.

    client_class: HttpClient or RpcClient. The other arguments are those of `parse_arguments`. The exit code
    is 1 if there was no answer.
    """
    options = parse_arguments(name, address_option, default, arguments)
    try:
        with client_class(
            options.address,
            options.service,
            options.method,
            timeout_s=options.timeout,
            retries=options.retries,
            **options.create_arguments(),
        ) as client:
            named = dict(zip(options.keys, options.texts, strict=True)) if options.keys else options.texts
            answer = client.predict(named)
    except (ClientError, ValueError) as error:
        plain_console(stderr=True).print(f"{type(error).__name__}: {error}", style="red", soft_wrap=True)
        return 1
    console = plain_console()
    if options.json:
        document = {"err_no": answer.err_no, "err_msg": answer.err_msg, "outputs": answer.texts}
        console.print(json.dumps(document, ensure_ascii=False), soft_wrap=True)
    else:
        console.print(answer_table(options.texts, answer))
        console.print(f"{answer.elapsed_ms:.1f} ms", style="dim")
    return 0


def answer_table(texts: Sequence[str], answer: Answer) -> Table:
    """Return the table that shows an answer: a row for each text, with its outputs as columns.

    If an output does not have one element for each text, the table has a row for each output instead.
    """
    values = {key: parse_value(text) for key, text in answer.texts.items()}
    columns = {
        key: value for key, value in values.items() if isinstance(value, list) and len(value) == len(texts)
    }
    table = Table()
    if len(columns) < len(values) or not values:
        table.add_column("output")
        table.add_column("value")
        for key, value in values.items():
            table.add_row(key, _format_table_cell(value))
        return table
    # The label comes first: readers care less about the other outputs.
    names = sorted(columns, key=lambda key: {"label": 0, "confidence": 1}.get(key, 2))
    table.add_column("text")
    for name in names:
        table.add_column(name)
    for row, text in enumerate(texts):
        table.add_row(text, *(_format_table_cell(columns[name][row]) for name in names))
    return table


def _format_table_cell(value: Value) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
