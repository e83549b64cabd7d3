"""The command line of `paddlewheel convert`: its help, its functions, and what it imports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import convert
from convert.cli import main
from tests.support import onnx_models, sentiment

ROOT = Path(__file__).parents[2]
COMMANDS = ("demo", "paddle", "torch", "serving", "onnx", "to-onnx", "precision", "shapes", "check", "all")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([command, "--help"])
    assert leaving.value.code == 0
    assert f"Example: paddlewheel convert {command} " in capsys.readouterr().out.replace("\n", " ")


def test_help_lists_every_command_and_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert re.findall(r"^    ([\w-]+)\s", out, re.MULTILINE) == list(COMMANDS)
    assert "Example: paddlewheel convert all" in out


def test_each_command_is_a_function_of_the_package() -> None:
    assert all(callable(getattr(convert, name)) for name in convert.__all__)
    with pytest.raises(AttributeError, match="convert_nothing"):
        _ = convert.convert_nothing


@pytest.mark.parametrize("command", ["paddle", "all"])
def test_a_script_is_refused_with_the_way_to_name_its_model(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").touch()
    assert main([command, "net.py", "out", "--input-spec", "image:float32[-1,3,32,32]"]) == 2
    assert "net.py is a script; name the class or function" in capsys.readouterr().err


def test_the_command_tells_a_mistake_in_one_line_without_importing_a_framework() -> None:
    code = (
        "import sys; from convert.cli import main; code = main(sys.argv[1:]);"
        "sys.exit(99 if {'paddle', 'torch', 'onnxruntime'} & set(sys.modules) else code)"
    )
    command = [sys.executable, "-c", code, "paddle", "m:f", "--input-spec", "ids:int65[-1]", "out"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    *progress, told = done.stderr.strip().splitlines()
    assert told.startswith("--input-spec: dtype 'int65' in 'ids:int65[-1]'") and told.endswith(".")
    assert "Traceback" not in "".join(progress)


NOISY = """
import os, warnings
os.write(1, b"native on 1\\n")
os.write(2, b"native on 2\\n")
warnings.warn("of a library")
print("printed")

def build():
    raise ValueError("no layer today")
"""


@pytest.mark.parametrize("debug", [[], ["--debug"]], ids=["", "with --debug"])
def test_libraries_lines_are_shown_with_debug_alone(tmp_path: Path, debug: list[str]) -> None:
    (tmp_path / "noisy.py").write_text(NOISY, "utf-8")
    command = [
        sys.executable,
        "-m",
        "convert",
        "paddle",
        "noisy:build",
        "out",
        "--input-spec",
        "x:float32[-1]",
    ]
    search_path = os.pathsep.join((str(ROOT), str(tmp_path)))
    done = subprocess.run(
        [*command, *debug],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": search_path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    theirs = ("native on 1", "native on 2", "of a library", "printed", "Traceback")
    assert done.returncode != 0 and "no layer today" in done.stderr
    assert [text in done.stdout + done.stderr for text in theirs] == [bool(debug)] * len(theirs)


def test_the_table_is_readable_at_80_columns_and_the_next_command_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sentiment.py").write_text(sentiment.SENTIMENT, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    exported = ["paddle", "sentiment:Sentiment", "exported", "--input-spec", sentiment.SPEC]
    assert main(exported) == 0
    assert (
        capsys.readouterr().out.splitlines()[-1] == "Next: paddlewheel convert serving exported models/mine"
    )
    assert main(["serving", "exported", "served"]) == 0
    *table, done, following = capsys.readouterr().out.splitlines()
    (row,) = [line for line in table if line.rstrip().endswith("yes")]
    assert row.split()[0] == "fetch_name_0" and max(map(len, table)) <= 80
    assert "static to serving" in [line.strip() for line in table]
    assert done == "served holds the serving model."
    assert following == "Next: paddlewheel new myservice --model served"
    monkeypatch.setenv("PATH", os.defpath)  # of a terminal in which no environment is active
    assert main(["serving", "exported", "served", "--force"]) == 0
    following = capsys.readouterr().out.splitlines()[-1]
    assert following == f"Next: {Path(sys.executable).with_name('paddlewheel')} new myservice --model served"
    assert main(["serving", "exported", "served"]) == 0
    assert "Next:" not in capsys.readouterr().out  # nothing was made


@pytest.mark.parametrize(
    ("model", "files", "option"),
    [
        ("classifier", {"vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n"}, " --input text"),
        ("classifier", {"vocab.txt": "[PAD]\n[UNK]\ngood\n"}, ""),
        ("photos", {}, " --input image"),
        ("board", {}, ""),
    ],
)
def test_the_next_command_takes_texts_or_images_where_the_model_is_for_such(
    model: str,
    files: dict[str, str],
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    beside = []
    for name, content in files.items():
        (tmp_path / name).write_text(content, "utf-8")
        beside += ["--file", name]
    labels = ["--labels", "a,b,c,d,e,f,g,h,i,j"] if model == "photos" else []
    assert main(["serving", str(onnx_models.onnx_file(model)), "served", *labels, *beside]) == 0
    following = capsys.readouterr().out.splitlines()[-1]
    assert following.endswith(f"new myservice --model served{option}")
