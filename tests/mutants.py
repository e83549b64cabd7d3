"""Mutation score of the scheduler's core: `python -m tests.mutants [--every N] [FILE ...]`.

mutmut changes one expression of one function at a time, and runs the quick unit tests that reach the
function. A change that no test notices survives. `[tool.mutmut]` in pyproject.toml names files and tests.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "mutants"  # mutmut's own name for it
GOAL_PERCENT = 85.0
MAX_MUTANTS = 500  # more than any function has
MISSED = ("survived", "no tests", "suspicious", "not checked")  # "no tests": runs at import alone, or never
LOG = FOLDER / "mutmut.log"
EXAMPLES = """examples:
  python -m tests.mutants                                        all mutants (half an hour)
  python -m tests.mutants --every 5                              a fifth of each function's mutants
  python -m tests.mutants --resume                               go on after an interruption
  python -m tests.mutants pipeline/worker/plan.py                one file
  python -m mutmut show 'pipeline.worker.plan.x_bucket__mutmut_8'    the change of a mutant
"""


def name_patterns(files: Sequence[str], every: int) -> list[str]:
    """Return the patterns of the mutants to run, for mutmut; none for all."""
    modules = [".".join(Path(file).with_suffix("").parts) for file in files]
    if every == 1:
        return [f"{module}.*" for module in modules]
    prefixes = [f"{module}.*" for module in modules] or ["*"]
    return [f"{prefix}__mutmut_{number}" for prefix in prefixes for number in range(1, MAX_MUTANTS, every)]


def results(patterns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each file with the status of its mutants that match, by their name."""
    from mutmut.stats import status_by_exit_code

    for path in sorted(FOLDER.rglob("*.meta")):
        codes = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
        statuses = {
            name: status_by_exit_code[code]
            for name, code in codes.items()
            if not patterns or any(fnmatch(name, pattern) for pattern in patterns)
        }
        if statuses:
            yield str(path.relative_to(FOLDER).with_suffix("")), statuses


def list_unchecked(patterns: Sequence[str]) -> list[str]:
    """Return the names of the mutants that an interrupted run has left, or all patterns before any result."""
    statuses = [status for _, statuses in results(patterns) for status in statuses.items()]
    return [name for name, status in statuses if status == "not checked"] if statuses else [*patterns]


def run_mutants(names: Sequence[str], processes: int) -> None:
    """Run mutmut for these names and patterns; without any, for all mutants that have no result.

    Without a terminal, its progress goes to a file: it has megabytes of control characters.
    """
    FOLDER.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(processes), *names]
    with LOG.open("ab") as log:
        subprocess.run(command, cwd=ROOT, check=True, stdout=None if sys.stdout.isatty() else log)


def report(patterns: Sequence[str]) -> float:
    """Print the score of each file and the survivors; returns the score of all."""
    killed = total = 0
    survivors: list[str] = []
    counts: Counter[str] = Counter()
    sys.stdout.write(f"\n{'file':45} {'mutants':>7} {'killed':>7} {'score':>6}\n")
    for file, statuses in results(patterns):
        missed = [f"{name} ({status})" for name, status in statuses.items() if status in MISSED]
        survivors += missed
        counts.update(statuses.values())
        count = len(statuses) - len(missed)
        killed, total = killed + count, total + len(statuses)
        sys.stdout.write(f"{file:45} {len(statuses):7} {count:7} {100 * count / len(statuses):5.1f}%\n")
    score = 100 * killed / max(1, total)
    sys.stdout.write(f"{'all':45} {total:7} {killed:7} {score:5.1f}%\n")
    sys.stdout.write(f"{', '.join(f'{count} {status}' for status, count in counts.most_common())}\n\n")
    sys.stdout.write("".join(f"{name}\n" for name in survivors))
    return score


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("files", nargs="*", metavar="FILE", help="files to change; default: all")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run every Nth of a function")
    parser.add_argument("--processes", type=int, default=1, help="tests at the same time; default: 1")
    parser.add_argument("--resume", action="store_true", help="keep the results of an interrupted run")
    options = parser.parse_args()
    patterns = name_patterns(options.files, options.every)
    names = patterns
    if options.resume:
        names = list_unchecked(patterns) if patterns else []
    else:
        shutil.rmtree(FOLDER, ignore_errors=True)  # results of other tests
    if names or not patterns:
        run_mutants(names, options.processes)
    score = report(patterns)
    if score < GOAL_PERCENT:
        sys.stdout.write(f"{score:.1f} % of the mutants are killed, the goal is {GOAL_PERCENT:g} %\n")
    return score < GOAL_PERCENT


if __name__ == "__main__":
    sys.exit(main())
