"""Audits the pinned versions: `python requirements/audit.py`, a part of `make check`.

What is installed must be what is pinned, and fit together. Then the advisories of osv.dev are asked for; if
they can't be reached, that is said, and the rest of the audit stands. Exit code 1 for a finding.
"""

import argparse
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SERVICE = "https://api.osv.dev/v1/querybatch"
PATIENCE_S = 5.0
LOCKS = ("serving.txt", "dev.txt")
ACCEPTED = "accepted.txt"  # advisories that do not concern this project, each with its reason


def pins(files: list[Path]) -> dict[str, str]:
    """Version by name."""
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return dict(pin.groups() for line in lines if (pin := re.match(r"([\w.-]+)==(\S+)", line)))


def not_as_pinned(pinned: dict[str, str]) -> list[str]:
    found = []
    for name, wanted in pinned.items():
        try:
            installed = version(name).split("+")[0]
        except PackageNotFoundError:
            installed = "not installed"
        if installed != wanted:
            found.append(f"{name} is {installed}, {wanted} is pinned; run `make setup`")
    return found


def in_conflict() -> list[str]:
    """What pip says of installed packages that do not fit together."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else done.stdout.splitlines()


def advisories(pinned: dict[str, str], service: str) -> list[tuple[str, str]]:
    """Package and number of each known advisory. Raises OSError when the service can't be asked."""
    queries = [{"package": {"ecosystem": "PyPI", "name": name}, "version": v} for name, v in pinned.items()]
    data = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(service, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        try:
            results: list[dict[str, Any]] = json.load(answer)["results"]
        except (ValueError, KeyError, TypeError) as exc:
            raise OSError(f"no answer of osv.dev: {exc!r}") from exc
    return [(n, each["id"]) for n, r in zip(pinned, results, strict=True) for each in r.get("vulns", ())]


def accepted(folder: Path) -> set[str]:
    file = folder / ACCEPTED
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python requirements/audit.py")
    parser.add_argument("--folder", type=Path, default=HERE, help="of the locks (default: %(default)s)")
    parser.add_argument("--service", default=SERVICE, help="an OSV service (default: %(default)s)")
    options = parser.parse_args()
    pinned = pins([options.folder / name for name in LOCKS if (options.folder / name).exists()])
    findings = not_as_pinned(pinned) + in_conflict()
    known = accepted(options.folder)
    asked = f"{len(pinned)} pinned versions have no known advisory"
    try:
        told = [(name, number) for name, number in advisories(pinned, options.service) if number not in known]
        findings += [f"{name} {pinned[name]}: {number}" for name, number in told]
    except (OSError, ValueError) as exc:
        asked = f"{len(pinned)} pinned versions are installed; advisories were not asked for ({exc})"
    for finding in findings:
        sys.stderr.write(f"audit: {finding}\n")
    if not findings:
        sys.stdout.write(f"audit: {asked}\n")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
