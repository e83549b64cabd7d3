"""`paddlewheel upgrade`: begins an upgrade in a running service, shows its progress, and writes a report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from client.errors import BadAnswer, ClientError, RequestRefused
from client.http_connection import HttpReply, HttpServers
from pipeline.errors import ConfigError, ServingError
from pipeline.launch.command_options import UpgradeOptions

_POLL_S = 0.5
_TIMEOUT_S = 60.0  # of a request: the service reads the new version from disk
_RUNNING, _ACCEPTED = "running", "accepted"

Report = Mapping[str, Any]


class NotUpgraded(ServingError):
    """Raised if the service refuses to begin an upgrade, or does not answer; the exit code is 2."""


def upgrade_model(options: UpgradeOptions) -> bool:
    """Upgrade a model of a running service, and print the result. Return whether the new version is served.

    An interrupt cancels the upgrade. Raises NotUpgraded and ConfigError.
    """
    try:
        servers = HttpServers(options.url, **options.create_arguments())
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc
    path = f"/v2/repository/models/{quote(options.model, safe='')}/upgrade"
    try:
        servers.post(path, msgspec.json.encode(options.request_document), _TIMEOUT_S, _parse_report)
        try:
            report = _watch_progress(servers, path)
        except KeyboardInterrupt:
            servers.delete(path, _TIMEOUT_S, _parse_report)
            report = _watch_progress(servers, path)
    except ClientError as exc:
        raise NotUpgraded(f"{options.url}: {exc}") from exc
    finally:
        servers.close()
    console = Console(markup=False, highlight=False)
    console.print(_build_table(report))
    if steps := _list_steps(report):
        console.print(_fill_table("live requests of the new version", _STEP_HEAD, steps))
    console.print(f"{report['result']}: {report['reason']}", soft_wrap=True)
    if options.report is not None:
        for written in write_report(report, options.report):
            console.print(f"written: {written}", soft_wrap=True)
    return bool(report["result"] == _ACCEPTED)


def _watch_progress(servers: HttpServers, path: str) -> Report:
    """Show the progress of an upgrade until its end. Return the last report of its progress."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as progress:
        task = progress.add_task("the new version is loaded", total=None)
        while True:
            report = servers.get(path, _TIMEOUT_S, _parse_report)
            requests = report["requests"]
            progress.update(
                task,
                description=f"{report['reason']}: {report['changed']} changed",
                completed=requests["compared"],
                total=requests["goal"] or None,
            )
            if report["result"] != _RUNNING:
                return report
            time.sleep(_POLL_S)


def _parse_report(reply: HttpReply) -> Report:
    """Return the decoded JSON of a response.

    Raises RequestRefused for an error, BadAnswer for other content.
    """
    try:
        document = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        document = None
    if reply.status >= 400:
        message = document.get("error") if isinstance(document, dict) else None
        raise RequestRefused(None, str(message or reply.reason), reply.status)
    if not isinstance(document, dict) or not {"result", "reason", "requests"} <= document.keys():
        raise BadAnswer("the answer is no report of an upgrade; is it a service of this version?")
    return document


def _list_percentiles(kind: str, latency_ms: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield table rows with the latency percentiles of the old and new version. kind: of the requests."""
    for name in ("p50", "p99"):
        old, new = (f"{latency_ms[version].get(name, 0):.1f} ms" for version in ("old", "new"))
        yield f"{name} of a {kind} request", old, new


def _list_rows(report: Report) -> list[tuple[str, str, str]]:
    """Return table rows with the figures of the old and new version: (name, old, new)."""
    compared, memory = report["requests"]["compared"], report["memory_bytes"]
    rows = [
        ("changed answers", f"{report['noise']} of {compared}", f"{report['changed']} of {compared}"),
        *_list_percentiles("copied", report["latency_ms"]),
        *(_list_percentiles("live", report["canary"]["latency_ms"]) if report["canary"] else ()),
        ("memory of a worker", *(f"{memory[version] / 1e6:.0f} MB" for version in ("old", "new"))),
    ]
    return [(name, old, new) for name, old, new in rows]


_STEP_HEAD = ("share", "requests", "failed", "late")


def _list_steps(report: Report) -> list[tuple[str, ...]]:
    """Return table rows with the steps of the canary, in columns of `_STEP_HEAD`; empty without a canary."""
    steps = report["canary"]["steps"] if report["canary"] else []
    return [(f"{s['share']:g} %", *(str(s[name]) for name in _STEP_HEAD[1:])) for s in steps]


def _build_table(report: Report) -> Table:
    head = ("", f"version {report['old_version']}", f"version {report['new_version']}")
    return _fill_table(f"model {report['model']}", head, _list_rows(report))


def _fill_table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(*head, title=title)
    for row in rows:
        table.add_row(*row)
    return table


def write_report(report: Report, path: Path) -> list[Path]:
    """Write the report of an upgrade to PATH.json and PATH.html. Return the paths. Raises ConfigError."""
    written = [path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.html")]
    try:
        written[0].write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
        written[1].write_text(render_html(report), "utf-8")
    except OSError as exc:
        raise ConfigError(f"--report {exc.filename or path} can't be written: {exc.strerror}") from exc
    return written


_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; padding: .3rem .8rem; border-bottom: 1px solid #8888; vertical-align: top; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
"""


def render_html(report: Report) -> str:
    """Render the report of an upgrade as a self-contained HTML page without scripts."""
    old, new = f"version {report['old_version']}", f"version {report['new_version']}"
    title = f"Upgrade of {report['model']} from {old} to {new}"
    bound = report["excess_bound"]
    confidence = (
        "" if bound is None else f"<p>With 99.5 % confidence, at most {bound:.2%} more answers change.</p>"
    )
    examples = [
        (example["output"], example["kind"], example["old"], example["new"]) for example in report["examples"]
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1>"
        f"<p><strong>{escape(report['result'])}</strong>: {escape(report['reason'])}</p>{confidence}"
        f"{_render_table(('', old, new), _list_rows(report))}"
        f"<h2>Changed answers</h2>{_render_table(('output', 'kind', old, new), examples)}"
        f"<h2>Live requests of {escape(new)}</h2>{_render_table(_STEP_HEAD, _list_steps(report))}</html>\n"
    )


def _render_table(head: tuple[str, ...], rows: list[Any]) -> str:
    if not rows:
        return "<p>none</p>"
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
