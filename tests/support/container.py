"""Container: the service of docker/compose.yml without docker, in namespaces as docker would make them.

An image is made by the lines of its Dockerfile, apart from those that fetch something: the system
libraries are this machine's, and the packages of the lock are those that are installed here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.container_files import (
    Instruction,
    Service,
    context,
    dockerfile_of_compose,
    instructions,
    service,
)
from tests.support.container_shim import REFUSED
from tests.support.locked_packages import link_locked
from tests.support.service_process import PATIENCE_S, ROOT, command_line, wait_until

UID = "999"  # the first that `useradd --system` gives
BUILD_PATH = "/opt/base:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LOCKS = {"serving": "requirements/serving.txt", "onnx": "requirements/onnx.txt"}  # by step of install.sh
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc")


class Ran(NamedTuple):
    """How a command in the container ended, and what it printed."""

    code: int
    printed: str


class Shim:
    """A container's namespaces; starts processes in them, see container_shim.py."""

    def __init__(self, root: Path, log: Path, **spec: Any) -> None:
        folders = [folder for folder in SYSTEM_FOLDERS if Path(folder).exists()]
        if not sys.base_prefix.startswith(SYSTEM_FOLDERS):
            folders.append(sys.base_prefix)
        full = {"root": str(root), "log": str(log), "system": folders, **spec}
        user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
        command = [_tool("unshare"), "--mount", "--net", "--ipc", "--uts", *user, sys.executable]
        self._process = subprocess.Popen(
            [*command, str(ROOT / "tests/support/container_shim.py"), json.dumps(full)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def order(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"environment": {}, **order}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            told = self._process.communicate()[1].strip()
            if told.startswith("unshare:") and "not permitted" in told:
                pytest.skip(f"this machine permits no namespaces: {told}")
            raise AssertionError(f"the shim left with {self._process.returncode}: {told}")
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            self.close()
            pytest.skip(f"this machine permits no container: {answer['refused']}")
        return answer


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"the machine has no `{name}` (util-linux)")
    return found


class Image:
    """The root folder of an image, made by its Dockerfile."""

    def __init__(self, folder: Path, dockerfile: Path) -> None:
        self.root = folder / "root"
        self._log = folder / "build.log"
        base = self.root / "opt/base/python3"
        base.parent.mkdir(parents=True, mode=0o755)
        base.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} "$@"\n', "utf-8")
        base.chmod(0o755)
        self.lines = lines = instructions(dockerfile)
        build_folder = next(line.rest for line in lines if line.word == "WORKDIR")
        self._app = self.root / build_folder.lstrip("/")
        self._app.mkdir()
        environment = {"PATH": BUILD_PATH, "HOME": "/tmp"}
        self._shim = Shim(
            self.root, self._log, build=True, read_only=False, tmpfs={"/tmp": ""}, shm="64m",
            volumes={}, become=[], folder=build_folder, environment=environment,
        )  # fmt: skip
        try:
            for line in lines:
                self._follow(line)
        finally:
            self._shim.close()
        last = [line.rest.split() for line in lines if line.stage == lines[-1].stage and line.word == "COPY"]
        if build_folder not in [words[1] for words in last]:
            shutil.rmtree(self._app)  # the last stage has what it copies, not what the build left
        folder = [line.rest for line in lines if line.word == "WORKDIR"][-1]
        (self.root / folder.lstrip("/")).mkdir(exist_ok=True)

    def _follow(self, line: Instruction) -> None:
        if line.word == "COPY" and not line.rest.startswith("--from="):
            self._copy(line.rest.split()[0])
        if line.word == "RUN":
            for command in line.rest.split(" && "):
                self._run(command)

    def _copy(self, what: str) -> None:
        for path in context():
            if what == "." or path.is_relative_to(what):
                target = self._app / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, target)

    def _run(self, command: str) -> None:
        if command.startswith(("docker/install.sh native", "useradd ")):
            return  # the machine's libraries; a user is a number here
        step, environment = command.split()[1], command.split()[-1]
        if command.startswith("docker/install.sh ") and step in LOCKS:
            link_locked(ROOT / LOCKS[step], self.root / environment.lstrip("/"))
            return
        ran = Ran(**self._shim.order(command=["sh", "-c", command]))
        assert ran.code == 0, f"RUN {command}\n{ran.printed}"


@contextmanager
def image(dockerfile: Path | None = None) -> Iterator[Image]:
    """Of docker/compose.yml, or of another file. Beside the environment, whose files it links."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="image-") as folder:
        Path(folder).chmod(0o755)
        yield Image(Path(folder), dockerfile or dockerfile_of_compose())


class Container:
    """The service of docker/compose.yml, running. Leaving the `with` block ends whatever runs in it.

    environment: as of `docker run --env`. command: instead of the image's. volumes: folders of this machine,
    and where they are in the container, which can't write there. compose: instead of the service there.
    """

    def __init__(
        self,
        built: Image,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        volumes: Mapping[str, str] | None = None,
        compose: Mapping[str, Any] | None = None,
    ) -> None:
        self.service = service(built.lines, compose)
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        path = self.service.environment["PATH"].replace("$PATH", BUILD_PATH.partition(":")[2])
        self._shim = Shim(
            built.root,
            self._log,
            build=False,
            read_only=self.service.read_only,
            tmpfs=self.service.tmpfs,
            shm=self.service.shm,
            volumes=dict(volumes or {}),
            become=_become(self.service),
            folder=self.service.folder,
            environment={**self.service.environment, "PATH": path, **(environment or {})},
        )
        order = {"first": True, "command": list(command or self.service.command)}
        self.pid = int(self._shim.order(**order)["pid"])

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self._shim.close()
        self._folder.cleanup()

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> Ran:
        """As `docker exec` does it."""
        return Ran(**self._shim.order(command=list(command), environment=dict(environment or {})))

    def python(self, code: str, *arguments: str) -> str:
        """What a program prints in the container; AssertionError when it fails."""
        ran = self.run("python", "-c", code, *arguments, environment={"PYTHONVERBOSE": ""})
        assert ran.code == 0, f"{ran.printed}\n{self.log}"
        return ran.printed

    def wait_until_healthy(self) -> None:
        wait_until(self._healthy, "HEALTHCHECK says so", 2 * PATIENCE_S, on_timeout=lambda: self.log)

    def wait_until_ready(self) -> None:
        """The log says so."""
        wait_until(self._ready, "the service is ready", 2 * PATIENCE_S, on_timeout=lambda: self.log)

    def _ready(self) -> bool:
        ended = self.exit_code(0)
        if ended == REFUSED:
            pytest.skip(f"this machine permits no /proc of a container's own: {self.log}")
        assert ended is None, f"the service left with {ended}:\n{self.log}"
        return " is ready: " in self.log

    def _healthy(self) -> bool:
        # Asked over and over before, it would take the workers' place on the cores.
        return self._ready() and self.run(*self.service.health_check).code == 0

    def exit_code(self, timeout_s: float) -> int | None:
        """None while it runs on after that."""
        code: int | None = self._shim.order(wait=timeout_s)["code"]
        return code

    def worker_pids(self) -> list[int]:
        """The front's workers, as this machine numbers them."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return sorted(pid for pid in map(int, children.split()) if "pipeline.worker" in command_line(pid))


def _become(to_be: Service) -> list[str]:
    """The command that gives up what a container's user has not.

    Who is not root can be no other user, but have another number for the one user that there is.
    """
    assert to_be.user not in ("root", "0")
    uid = to_be.user if to_be.user.isdecimal() else UID
    limits = ["--no-new-privs"] if to_be.no_new_privileges else []
    if to_be.no_capabilities:
        limits += ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    if os.geteuid() == 0:
        return [_tool("setpriv"), f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *limits, "--"]
    other = [_tool("unshare"), "--user", f"--map-user={uid}", f"--map-group={uid}", "--keep-caps"]
    return [*other, _tool("setpriv"), *limits, "--"]
