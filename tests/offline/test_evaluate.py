"""`paddlewheel evaluate`: the figures of answers whose right ones are known, worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pipeline.launch.command_line import main
from tests.support.service_process import APPS, ServiceProcess

SCRIPT = APPS / "lengths.py"
CONFIG = {"op": {"lengths": {"concurrency": 1}}}


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(SCRIPT, CONFIG) as started:
        yield started


def jsonl(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), "utf-8")
    return path


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    assert main(["evaluate", *map(str, arguments)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out.splitlines()


def test_a_scored_file_has_accuracy_and_f1_by_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [
        ("news_car", "car"),
        ("news_car", "car"),
        ("news_car", "edu"),
        ("news_edu", "edu"),
        ("news_edu", "car"),
    ]
    rows = [{"gold": gold, "answer": {"label": told, "score": 0.5}} for gold, told in pairs]
    rows.append({"gold": "news_edu", "error": "line 6: refused"})
    source, report = jsonl(tmp_path / "scored.jsonl", rows), tmp_path / "report"
    lines = evaluated(capsys, source, "--gold", "gold", "--prefix", "news_", "--report", report)
    assert lines[-1] == "acc: 0.5000"
    told = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert (told["rows"], told["failed"], told["accuracy"]) == (6, 1, 0.5)
    assert told["classes"]["car"] == {"support": 3, "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3}
    assert told["classes"]["edu"] == {"support": 3, "precision": 0.5, "recall": 1 / 3, "f1": 0.4}
    assert told["macro_f1"] == pytest.approx((2 / 3 + 0.4) / 2)
    assert ["car", "edu", 1] in told["confusion"] and ["edu", "(no answer)", 1] in told["confusion"]
    picture = ElementTree.parse(tmp_path / "report.svg").getroot()
    titles = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert "edu answered as car: 1 of 3" in titles


def test_a_service_is_asked_and_its_latency_told(
    service: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"long": ["longer than five", "国足客场两球取胜"], "short": ["a", "six fits not"]}
    rows = [{"sentence": text, "label": label} for label, many in texts.items() for text in many]
    source, kept = jsonl(tmp_path / "in.jsonl", rows), tmp_path / "kept.jsonl"
    report = tmp_path / "report"
    lines = evaluated(
        capsys, source, "--gold", "label", "--key", "text=sentence", "--service", service.url,
        "--scored", kept, "--report", report,
    )  # fmt: skip
    assert lines[-1] == "acc: 0.7500"
    assert any(line.startswith("p50 ") for line in lines)
    assert set(json.loads((tmp_path / "report.json").read_text("utf-8"))["latency"]) == {
        "p50_ms",
        "p90_ms",
        "p99_ms",
    }
    # What is kept is a scored file like any other.
    assert evaluated(capsys, kept, "--gold", "label")[-1] == "acc: 0.7500"


def test_entities_are_right_with_place_and_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def entity(start: int, end: int, label: str) -> dict[str, Any]:
        return {"start": start, "end": end, "label": label}

    rows = [
        {"gold": [entity(0, 2, "PER"), entity(5, 9, "LOC")], "answer": {"entities": [entity(0, 2, "PER")]}},
        {"gold": [entity(0, 2, "PER")], "answer": {"entities": [entity(0, 3, "PER")]}},
        {"gold": [], "answer": {"entities": []}},
        {"gold": [entity(4, 6, "LOC")], "answer": {"entities": [entity(4, 6, "PER")]}},
    ]
    lines = evaluated(capsys, jsonl(tmp_path / "scored.jsonl", rows), "--gold", "gold")
    assert lines[-3] == f"entity f1: {2 * 1 / (4 + 3):.4f}"
    assert lines[-1] == "acc: 0.2500"


@pytest.mark.parametrize(
    ("gold", "told"),
    [
        (["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "I-PER", "O", "B-LOC"]),
        (["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "E-PER", "O", "S-LOC"]),
        (["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "L-PER", "O", "U-LOC"]),
    ],
    ids=["BIO", "BIOES", "BIOUL"],
)
def test_tags_of_each_scheme_spell_the_same_entities(
    gold: list[str], told: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"gold": gold, "answer": {"label": told}}, {"gold": ["O"], "answer": {"label": ["B-PER"]}}]
    lines = evaluated(capsys, jsonl(tmp_path / "scored.jsonl", rows), "--gold", "gold")
    assert lines[-3:] == [f"entity f1: {2 * 2 / (2 + 3):.4f}", lines[-2], "acc: 0.5000"]


def test_several_labels_are_compared_as_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"gold": ["a", "b"], "answer": {"labels": ["b", "a"], "scores": [0.9, 0.8]}},
        {"gold": ["a"], "answer": {"labels": ["a", "b"], "scores": [0.9, 0.8]}},
        {"gold": [], "answer": {"labels": ["", ""], "scores": [0, 0]}},
    ]
    lines = evaluated(capsys, jsonl(tmp_path / "scored.jsonl", rows), "--gold", "gold")
    assert lines[-3] == f"micro f1: {2 * 3 / (3 + 4):.4f}"
    assert lines[-1] == "acc: 0.6667"


def test_texts_have_a_character_error_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [("国足取胜", "国足胜"), ("three 7", "thre 78"), ("ab", "ba"), ("same", "same")]
    rows: list[Any] = [{"gold": "lost", "error": "line 1: refused"}]
    rows += [{"gold": gold, "answer": {"text": text}} for gold, text in pairs]
    report = tmp_path / "report"
    lines = evaluated(capsys, jsonl(tmp_path / "scored.jsonl", rows), "--gold", "gold", "--report", report)
    # Each change by hand: 4 + 1 deleted, 1 deleted and 1 inserted, 2 of "ab".
    assert lines[-2:] == [f"cer: {(4 + 1 + 2 + 2) / (4 + 4 + 6 + 2 + 4):.4f}", "acc: 0.2000"]
    figures = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert (figures["task"], figures["characters"], figures["failed"]) == ("text", 20, 1)
    assert figures["substitutions"] + figures["deletions"] + figures["insertions"] == 9
    assert not (tmp_path / "report.svg").exists()
    rows.append({"gold": "a", "answer": {"other": "a"}})
    assert main(["evaluate", str(jsonl(tmp_path / "scored.jsonl", rows)), "--gold", "gold"]) != 0
    assert "line 6: the answer has no 'text'" in capsys.readouterr().err


def test_a_table_is_evaluated_as_its_rows_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "scored.csv"
    source.write_text("gold,answer.label,error\ncar,car,\ncar,edu,\nedu,,line 4: refused\n", "utf-8")
    assert evaluated(capsys, source, "--gold", "gold")[-1] == "acc: 0.3333"


@pytest.mark.parametrize(
    ("rows", "gold", "expected"),
    [
        ([], "gold", "has no rows"),
        ([{"gold": "a", "answer": {"label": "a"}}], "label", "line 1: has no column 'label'"),
        ([{"gold": "a"}], "gold", "line 1: has no 'answer'; is the file scored?"),
        ([{"gold": "a", "answer": {"embedding": [1]}}], "gold", "line 1: the answer has no 'label'"),
        ([{"gold": {"x": 1}, "answer": {"label": "a"}}], "gold", "is no label"),
        ([{"gold": [{"start": 1}], "answer": {"entities": []}}], "gold", "is no entity"),
    ],
)
def test_what_can_not_be_compared_is_told_with_its_row(
    rows: list[Any], gold: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = jsonl(tmp_path / "scored.jsonl", rows)
    assert main(["evaluate", str(source), "--gold", gold]) == 2
    told = capsys.readouterr().err
    assert expected in told and str(source) in told
