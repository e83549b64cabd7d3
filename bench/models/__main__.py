"""Converts models of many frameworks, serves them over every endpoint, and reports the results.

Each model is created with random weights, converted by `convert all`, and served by the script of
`paddlewheel new`. Its answers over every endpoint are compared with the framework's own. The command needs
the environments of `make test-convert`. A model that fails or hangs has a row, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from bench.load import CannotMeasure
from bench.models import pages
from bench.models.findings import Finding, Findings
from bench.models.subject import Subject
from bench.models.subjects import SUBJECTS, get_title
from bench.running import ROOT
from convert.steps.isolation import run_isolated
from pipeline.tuning.choice import describe_machine

JSON = ROOT / "build" / "models.json"
_LIBRARIES = (
    *("paddlepaddle", "paddlenlp", "torch", "transformers", "scikit-learn", "lightgbm", "xgboost-cpu"),
    *("onnx", "onnxruntime"),
)


def try_in_process(subject: Subject, limit_s: float) -> Finding:
    """Try a model in a process with a time limit, and return the result."""
    with (
        tempfile.TemporaryDirectory(prefix="model.", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            [sys.executable, "-m", "bench.models.trial", get_title(subject), folder],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit_s)
            if process.returncode == 0:
                return msgspec.json.decode(out.splitlines()[-1], type=Finding)
            why = (err.strip().splitlines() or [f"it left with {process.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            why = f"it took more than {limit_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return Finding(subject.name, subject.family, refusal=why)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    findings = pages.read_findings(options.json)
    try:
        if not options.print:
            _try_all(findings, options, console)
        if not findings.models:
            raise CannotMeasure(f"{options.json} holds no findings")
        console.print(pages.markdown(findings, "en"), markup=False)
        if options.docs:
            pages.write_docs(findings)
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    return 0 if all(finding.right for finding in findings.models) else 1


def _try_all(findings: Findings, options: argparse.Namespace, console: Console) -> None:
    chosen = [subject for subject in SUBJECTS if _is_wanted(subject, options.models)]
    findings.machine, findings.versions = describe_machine(), _versions()
    known = {(subject.family, subject.name) for subject in SUBJECTS}
    findings.models = [finding for finding in findings.models if (finding.family, finding.name) in known]
    with (
        ThreadPoolExecutor(options.at_once) as pool,
        Progress(console=console, transient=True) as progress,
    ):
        for finding in progress.track(
            pool.map(lambda subject: try_in_process(subject, options.limit), chosen), total=len(chosen)
        ):
            findings.add(finding)
            findings.models.sort(key=_place)
            pages.write(findings, options.json)
            _print_finding(finding, console)


def _is_wanted(subject: Subject, parts: Sequence[str]) -> bool:
    return not parts or any(part.lower() in get_title(subject).lower() for part in parts)


def _place(finding: Finding) -> int:
    titles = [get_title(subject) for subject in SUBJECTS]
    return titles.index(f"{finding.family}: {finding.name}")


def _print_finding(finding: Finding, console: Console) -> None:
    result = finding.refusal or f"{finding.convert_s:.0f} s, {', '.join(finding.route)}: {finding.largest}"
    mark = "right" if finding.right else "WRONG"
    console.print(f"{mark}  {finding.family}: {finding.name}: {result}", markup=False)
    for endpoint, found in finding.endpoints.items():
        if isinstance(found, str) or (found > 0 and not finding.right):
            console.print(f"       {endpoint}: {found}", markup=False)


def _versions() -> dict[str, str]:
    """Return the versions of the frameworks in the conversion environment."""
    found: dict[str, str] = run_isolated(
        "bench.models.installed:versions", {"names": list(_LIBRARIES)}, converter="pip", needs=("torch",)
    )
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.models", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="PART", help="of their names (default: all)")
    parser.add_argument("--limit", type=float, default=300, metavar="S", help="of a model (%(default)g)")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="models (%(default)s)")
    parser.add_argument("--json", type=Path, default=JSON, help="what was found (build/models.json)")
    parser.add_argument("--print", action="store_true", help="try nothing: show what that file has")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/, too")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
