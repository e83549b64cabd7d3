"""The clients as scripts: what they print, and what they say when they can't run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from client.protos.pipeline_service_pb2 import Request
from tests.support.command_line import python
from tests.support.scripted_servers import OUTPUTS, http_server, reply, respond, rpc_server
from tests.support.service_process import ROOT


def test_scripts_print_text_label_and_confidence() -> None:
    with http_server(respond()) as server, rpc_server(reply()) as rpc:
        over_http = python("client/http_client.py", "--url", server.url, "国足 [red] :car: 取胜")
        over_rpc = python("client/rpc_client.py", "--address", rpc.address, "国足 [red] :car: 取胜")
    for result in (over_http, over_rpc):
        assert result.returncode == 0, result.stderr
        for part in ("国足 [red] :car: 取胜", "sports", "0.980"):
            assert part in result.stdout


def test_scripts_print_the_raw_answer_as_json() -> None:
    with rpc_server(reply()) as rpc:
        result = python("client/rpc_client.py", "--address", rpc.address, "--json", "text")
    assert json.loads(result.stdout) == {"err_no": 0, "err_msg": "", "outputs": OUTPUTS}


def test_scripts_send_texts_under_any_key_with_any_header() -> None:
    options = ("--as", "title", "--as", "body", "--header", "X-Own: 1", "a title", "a text")
    with http_server(respond()) as server, rpc_server(reply()) as rpc:
        over_http = python("client/http_client.py", "--url", server.url, *options)
        over_rpc = python("client/rpc_client.py", "--address", rpc.address, *options)
    assert (over_http.returncode, over_rpc.returncode) == (0, 0)
    ((_, body),) = server.seen
    assert body == {"key": ["title", "body"], "value": ["a title", "a text"]}
    assert server.headers[0]["x-own"] == "1"
    assert list(Request.FromString(rpc.seen[0]).key) == ["title", "body"]
    refused = python("client/http_client.py", "--as", "title", "one", "two")
    assert refused.returncode == 2 and "--as is given 1 times for 2 texts" in refused.stderr


def test_the_package_itself_says_what_there_is_to_run() -> None:
    for options, code in (((), 0), (("--help",), 0), (("ask",), 2)):
        result = python("-m", "client", *options)
        assert result.returncode == code
        modules = ("http_client", "rpc_client", "voice_activity", "speech_recognition", "load")
        for command in (f"client.{module}" for module in modules):
            assert f"python3 -m {command}" in result.stdout + result.stderr


def test_script_without_a_service_says_so(closed_port: int) -> None:
    result = python(
        "client/http_client.py", "--url", f"http://127.0.0.1:{closed_port}", "--retries", "0", "text"
    )
    assert result.returncode == 1
    assert "ServiceUnreachable: nothing listens at" in result.stderr


def test_script_goes_on_in_the_projects_environment_when_its_own_lacks_grpc(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "client", tmp_path / "client", ignore=shutil.ignore_patterns("__pycache__"))
    script = tmp_path / "client/rpc_client.py"
    without = python("-S", script, "text")
    assert without.returncode == 1
    assert "make setup" in without.stderr
    interpreter = tmp_path / ".venv/bin/python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text('#!/bin/sh\necho "$@"\n')
    interpreter.chmod(0o755)
    assert python("-S", script, "text").stdout.split() == ["-S", str(script), "text"]
