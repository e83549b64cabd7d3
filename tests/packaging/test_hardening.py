"""The audit of pinned versions, and what the images and compose.yml may not lose."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.service_process import ROOT


class Osv(BaseHTTPRequestHandler):
    """Knows an advisory for each package of `bad`."""

    bad: dict[str, str] = {}

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
        names = [query["package"]["name"] for query in asked]
        results: list[dict[str, Any]] = [
            {"vulns": [{"id": self.bad[name]}]} if name in self.bad else {} for name in names
        ]
        body = json.dumps({"results": results}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def osv() -> Iterator[str]:
    Osv.bad = {}
    server = HTTPServer(("127.0.0.1", 0), Osv)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """Two packages that are installed here."""
    (tmp_path / "serving.txt").write_text(f"# pinned\nmsgpack=={version('msgpack')}\n")
    (tmp_path / "dev.txt").write_text(f"-r serving.txt\npytest=={version('pytest')}\n")
    return tmp_path


def audited(root: Path, locks: Path, service: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "requirements/audit.py", "--folder", str(locks), "--service", service]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "requirements/audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_advisory_for_a_pinned_version_fails_the_check(root: Path, locks: Path, osv: str) -> None:
    Osv.bad = {"pytest": "PYSEC-2026-1", "msgpack": "PYSEC-2026-2"}
    (locks / "accepted.txt").write_text("# reasons\nPYSEC-2026-2 nobody is given a Packer\n")
    done = audited(root, locks, osv)
    assert done.returncode == 1
    assert done.stderr == f"audit: pytest {version('pytest')}: PYSEC-2026-1\n"


def test_without_the_service_the_rest_of_the_audit_stands(root: Path, locks: Path, closed_port: int) -> None:
    done = audited(root, locks, f"http://127.0.0.1:{closed_port}/")
    assert done.returncode == 0
    assert "2 pinned versions are installed; advisories were not asked for" in done.stdout


def test_versions_without_an_advisory_are_fine(audit: Any, locks: Path, osv: str) -> None:
    pinned = audit.pins([locks / "serving.txt", locks / "dev.txt"])
    assert list(pinned) == ["msgpack", "pytest"]
    assert audit.advisories(pinned, osv) == []
    assert audit.not_as_pinned(pinned) == []


def test_what_is_installed_must_be_what_is_pinned(audit: Any) -> None:
    old, missing = audit.not_as_pinned({"msgpack": "0.0.1", "not-there-at-all": "1.0"})
    assert "0.0.1 is pinned" in old
    assert "not-there-at-all is not installed" in missing


def test_make_check_audits(root: Path) -> None:
    check = (root / "Makefile").read_text("utf-8").split("\ncheck:")[1].split("\n\n")[0]
    assert "requirements/audit.py" in check


@pytest.mark.parametrize("name", ["docker/Dockerfile", "docker/Dockerfile.gpu"])
def test_images_run_as_nobody_in_particular_and_build_nothing_secret_in(root: Path, name: str) -> None:
    lines = (root / name).read_text("utf-8").splitlines()
    last_stage = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM ")) :]
    users = [line.split()[1] for line in last_stage if line.startswith("USER ")]
    assert users and users[-1] not in ("root", "0")
    assert not [line for line in lines if line.startswith(("ARG", "ENV")) and "KEY" in line.upper()]


@pytest.mark.parametrize(
    "name", ["server.pem", "tls/server.key", ".env", "a/.env.local", "my_api_keys", "x/secrets"]
)
def test_secrets_beside_the_code_are_not_copied_into_an_image(root: Path, name: str) -> None:
    patterns = [
        line for line in (root / ".dockerignore").read_text("utf-8").splitlines() if line[:1] not in "#!"
    ]
    assert any(fnmatch(f"/{name}", pattern.replace("**/", "*/")) for pattern in patterns)


def test_the_compose_service_can_write_nowhere_and_become_nobody_else(root: Path) -> None:
    service = yaml.safe_load((root / "docker/compose.yml").read_text("utf-8"))["services"]["paddlewheel"]
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "user", "environment"} & set(service)


def test_the_services_that_observe_need_their_profile_and_are_not_open_to_the_network(root: Path) -> None:
    services = yaml.safe_load((root / "docker/compose.yml").read_text("utf-8"))["services"]
    observing = {name: service for name, service in services.items() if name != "paddlewheel"}
    assert set(observing) == {"prometheus", "grafana", "otel-collector", "jaeger"}
    for name, service in observing.items():
        assert service["profiles"] == ["observe"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (root / "docker" / source).is_file(), volume
