"""`paddlewheel score`: every row of a file is answered once, in order, whatever happens meanwhile."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.launch.command_line import main
from tests.support.service_process import APPS, ROOT, ServiceProcess, wait_until

SCRIPT = APPS / "lengths.py"
CONFIG = {"op": {"lengths": {"concurrency": 1}}}
TEXTS = [
    "a",
    "国足客场两球取胜",
    "four",
    "U+2028\u2028inside",
    "",
    "a much longer text than the others",
    "👩‍🚀",
]
ROWS = [{"id": number, "text": f"{text} {number}"} for number, text in enumerate(TEXTS * 5)]


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(SCRIPT, CONFIG) as started:
        yield started


@pytest.fixture(params=["service", "model"])
def target(
    request: pytest.FixtureRequest, service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The options that name what is asked: through a server, or in the command's process."""
    monkeypatch.setenv("SERVICE_CONFIG", str(service.config_path))
    return ["--service", service.url] if request.param == "service" else ["--model", str(SCRIPT)]


def jsonl(path: Path, rows: Sequence[Any] = ROWS) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().decode().split("\n") if line]


def count_lines(path: Path) -> int:
    """Return the number of whole lines of a file that may be written now."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def answer_to(text: str, mark: str = "") -> dict[str, Any]:
    return {"label": "long" if len(text) > 5 else "short", "length": len(text), "mark": mark}


def answered(rows: Sequence[Mapping[str, Any]] = ROWS, mark: str = "") -> list[dict[str, Any]]:
    return [{**row, "answer": answer_to(row["text"], mark)} for row in rows]


def score(*arguments: str | Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline", "score", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == expect, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_rows_are_answered_in_order(target: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = score(jsonl(tmp_path / "in.jsonl"), out, *target, "--window", 8, "--rows-per-request", 3)
    assert lines(out) == answered()
    assert done.stdout.startswith(f"{len(ROWS)} rows in {out}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_columns_and_parameters_are_named(target: list[str], tmp_path: Path) -> None:
    source = jsonl(tmp_path / "in.jsonl", [{"sentence": "headline", "text": 7}])
    out = tmp_path / "out.jsonl"
    score(source, out, *target, "--key", "text=sentence", "--parameter", "mark=x", "--field", "told")
    assert lines(out) == [{"sentence": "headline", "text": 7, "told": answer_to("headline", "x")}]


@pytest.mark.parametrize("at", [0, 34])
def test_a_killed_run_goes_on_without_a_lost_or_doubled_row(
    at: int, service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [dict(row) for row in ROWS]
    rows[at]["text"] = "wait"
    source, out, gate = jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", tmp_path / "gate"
    monkeypatch.setenv("SERVICE_CONFIG", str(service.config_path))
    monkeypatch.setenv("GATE", str(gate))
    arguments = [str(source), str(out), "--model", str(SCRIPT), "--window", "4", "--rows-per-request", "2"]
    command = [sys.executable, "-m", "pipeline", "score", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    part = tmp_path / "out.jsonl.part"
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as running:
        try:
            # The window before that one is written; itself and what follows it is not.
            wait_until(gate.with_suffix(".waiting").exists, "the row that waits")
            before = at // 4 * 4
            wait_until(lambda: count_lines(part) == before, "the rows before it")
        finally:
            running.send_signal(signal.SIGKILL)
    with part.open("ab") as file:  # as a kill within a write leaves it
        file.write(b'{"id": 99, "te')
    gate.touch()
    done = score(*arguments)
    assert lines(out) == answered(rows)
    assert at < 4 or f"{at // 4 * 4} of them from an earlier run" in done.stdout


def test_a_row_that_is_refused_ends_the_run_and_is_named(target: list[str], tmp_path: Path) -> None:
    rows = [*ROWS[:9], {"id": 9, "text": "unwelcome"}, *ROWS[9:]]
    source, out = jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    told = score(source, out, *target, "--rows-per-request", 4, expect=1).stderr
    assert f"{source}, line 10: " in told and "is unwelcome" in told and "--errors write" in told
    assert lines(tmp_path / "out.jsonl.part") == answered(rows[:9]) and not out.exists()
    rows[9] = {"id": 9, "text": "welcome"}
    assert "9 of them from an earlier run" in score(jsonl(source, rows), out, *target).stdout
    assert lines(out) == answered(rows)


BROKEN = {
    "no JSON": ('{"text": "a', "no JSON"),
    "no object": ("[1, 2]", "not an object"),
    "no column": ('{"sentence": "a"}', "no column 'text'"),
    "no text": ('{"text": [1]}', "text"),
    "refused": ('{"text": "unwelcome"}', "unwelcome"),
}


def test_broken_rows_are_written_with_their_errors(target: list[str], tmp_path: Path) -> None:
    rows: list[Any] = [*ROWS[:3], *[line for line, _ in BROKEN.values()], *ROWS[3:]]
    source, out = jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    done = score(source, out, *target, "--errors", "write")
    written = lines(out)
    assert f"{len(BROKEN)} with an error" in done.stdout
    assert written[:3] + written[3 + len(BROKEN) :] == answered()
    for number, (row, (_, told)) in enumerate(zip(written[3:], BROKEN.values(), strict=False), 4):
        assert row["error"].startswith(f"line {number}: ") and told in row["error"] and "answer" not in row


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_row_is_told(
    case: str, service: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, expected = BROKEN[case]
    source = jsonl(tmp_path / "in.jsonl", [ROWS[0], line, ROWS[1]])
    assert main(["score", str(source), str(tmp_path / "out.jsonl"), "--service", service.url]) == 1
    told = capsys.readouterr().err
    assert f"{source}, line 2: " in told and expected in told


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_tables_are_read_and_written(ending: str, service: ServiceProcess, tmp_path: Path) -> None:
    source, out = tmp_path / f"in.{ending}", tmp_path / f"out.{ending}"
    rows = [{"id": str(row["id"]), "text": row["text"] + ', "quoted"\nand broken'} for row in ROWS]
    write_table(source, rows)
    assert main(["score", str(source), str(out), "--service", service.url, "--window", "8"]) == 0
    expected = [
        {**row, **{f"answer.{name}": value for name, value in answer_to(row["text"]).items()}} for row in rows
    ]
    if ending != "parquet":
        expected = [{name: str(value) for name, value in row.items()} for row in expected]
    assert read_table(out) == expected


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)


def read_table(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        found: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        return found
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def test_a_broken_row_of_a_table_is_told(
    service: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes(b"id,text\n1,a\n2,b,c\n3,\xff\n4,d\n")
    out = tmp_path / "out.csv"
    assert main(["score", str(source), str(out), "--service", service.url, "--errors", "write"]) == 0
    rows = read_table(out)
    assert [row["answer.label"] for row in rows] == ["short", "", "", "short"]
    assert "3 cells" in rows[1]["error"] and "no UTF-8" in rows[2]["error"]
    assert "with an error" in capsys.readouterr().out


def odd_files(folder: Path) -> dict[str, Path]:
    """A table in another encoding, one with a page that can't be read, a folder where a file should be."""
    gbk, torn = folder / "gbk.csv", folder / "torn.parquet"
    gbk.write_bytes("文本,id\na,1\n".encode("gbk"))
    write_table(torn, [{"text": "short"}] * 2000)
    damaged = bytearray(torn.read_bytes())
    damaged[4:40] = bytes(36)
    torn.write_bytes(damaged)
    (folder / "a_folder.jsonl").mkdir()
    return {"gbk": gbk, "torn": torn}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{folder}/missing.jsonl", "{out}"], "missing.jsonl is not a file"),
        (["{source}.txt", "{out}"], "it ends with .jsonl"),
        (["{source}", "{folder}/out.xlsx"], "it ends with .jsonl"),
        (["{source}", "{folder}/none/out.jsonl"], "can't be written"),
        (["{source}", "{source}"], "is there already"),
        (["{source}", "{out}", "--field", "text"], "has a column 'text' already"),
        (["{gbk}", "{out}"], "gbk.csv: its first line is no UTF-8; save the file as UTF-8"),
        (["{source}", "{folder}/a_folder.jsonl", "--restart"], "a_folder.jsonl can't be written"),
        (["{torn}", "{out}"], "torn.parquet can't be read on after row 0"),
    ],
)
def test_what_can_not_be_done_is_told_at_once(
    arguments: Sequence[str],
    expected: str,
    service: ServiceProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = jsonl(tmp_path / "in.jsonl")
    names = {"folder": tmp_path, "source": source, "out": tmp_path / "out.jsonl", **odd_files(tmp_path)}
    given = [argument.format(**names) for argument in arguments]
    assert main(["score", *given, "--service", service.url]) == 2
    assert expected in capsys.readouterr().err


def test_a_run_with_other_settings_does_not_go_on(
    service: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = jsonl(tmp_path / "in.jsonl", [*ROWS, "broken"])
    given = ["score", str(source), str(tmp_path / "out.jsonl"), "--service", service.url]
    assert main(given) == 1
    capsys.readouterr()
    assert main([*given, "--parameter", "mark=x", "--field", "told"]) == 2
    told = capsys.readouterr().err
    assert "another parameters, field" in told and "--restart" in told
    # What becomes of a broken row may be said later: so says the message that ends a run.
    assert main([*given, "--errors", "write"]) == 0
    assert lines(tmp_path / "out.jsonl")[:-1] == answered()
    assert f"{len(ROWS)} of them from an earlier run" in capsys.readouterr().out
    assert main([*given, "--errors", "write", "--parameter", "mark=x", "--restart"]) == 0
    assert lines(tmp_path / "out.jsonl")[:-1] == answered(mark="x")


def test_an_input_that_was_changed_before_where_it_stands_is_told(
    service: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = jsonl(tmp_path / "in.jsonl", [*ROWS, "broken"])
    given = ["score", str(source), str(tmp_path / "out.jsonl"), "--service", service.url]
    assert main(given) == 1
    jsonl(source, [*ROWS[:3], {"id": 3, "text": "another"}, *ROWS[4:]])
    assert main(given) == 2
    assert "row 4 of it is not that of the input" in capsys.readouterr().err


def test_a_service_that_does_not_answer_is_told_and_the_run_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out.jsonl"
    rows = [*ROWS[:20], {"id": 20, "text": "wait"}]
    monkeypatch.setenv("GATE", str(gate))
    with ServiceProcess(SCRIPT, CONFIG) as stuck:
        options = [jsonl(tmp_path / "in.jsonl", rows), out, "--service", f"127.0.0.1:{stuck.http_port}"]
        options += ["--window", 4, "--timeout", 4]
        told = score(*options, expect=1).stderr
        assert f"http://127.0.0.1:{stuck.http_port}/test: " in told
        gate.touch()
        # The window before the one that waits is asked together with it.
        assert re.search(r"\b(16|20) of them from an earlier run", score(*options).stdout)
    assert lines(out) == answered(rows)


@pytest.mark.parametrize("ending", ["in.parquet", "out.parquet"])
def test_parquet_without_its_library_is_told_with_the_line_for_pip(
    ending: str,
    service: ServiceProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, out = jsonl(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    source, out = (tmp_path / ending, out) if ending == "in.parquet" else (source, tmp_path / ending)
    source.touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["score", str(source), str(out), "--service", service.url]) == 2
    assert "pip install pyarrow" in capsys.readouterr().err


def test_a_service_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = jsonl(tmp_path / "in.jsonl")
    assert main(["score", str(source), str(tmp_path / "out.jsonl"), "--service", "127.0.0.1:1"]) == 2
    assert "nothing listens at http://127.0.0.1:1" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_told(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "in.jsonl")
    told = score(source, tmp_path / "out.jsonl", "--model", tmp_path / "none", expect=2).stderr
    assert "none is not there" in told
