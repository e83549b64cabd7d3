"""What docker/Dockerfile, docker/compose.yml and .dockerignore say, as docker understands it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.service_process import ROOT


@dataclass(frozen=True)
class Instruction:
    """A line of a Dockerfile, with the lines that continue it. stage: its name, or its number."""

    stage: str
    word: str
    rest: str


def instructions(dockerfile: Path) -> list[Instruction]:
    lines = [line for line in dockerfile.read_text("utf-8").splitlines() if not line.lstrip().startswith("#")]
    found: list[Instruction] = []
    stage, stages = "", 0
    for line in filter(str.strip, "\n".join(lines).replace("\\\n", " ").splitlines()):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            stage = rest.split(" AS ")[1] if " AS " in rest else str(stages)
            stages += 1
        found.append(Instruction(stage, word, rest))
    return found


@dataclass(frozen=True)
class Service:
    """What a container of the image is started with."""

    user: str
    folder: str
    environment: dict[str, str]
    command: list[str]
    health_check: list[str]
    health_timeout_s: float
    read_only: bool
    tmpfs: dict[str, str]  # by path, its options
    shm: str
    no_capabilities: bool
    no_new_privileges: bool
    stop_grace_s: float


def dockerfile_of_compose() -> Path:
    build = _compose()["build"]
    return ROOT / "docker" / str(build["context"]) / str(build["dockerfile"])


def _compose() -> dict[str, Any]:
    services = yaml.safe_load((ROOT / "docker/compose.yml").read_text("utf-8"))["services"]
    return dict(services["paddlewheel"])


def service(image: list[Instruction], compose: Mapping[str, Any] | None = None) -> Service:
    """That of docker/compose.yml, or `compose`, of this image. Raises for a key that nothing here heeds."""
    compose = _compose() if compose is None else compose
    unknown = set(compose) - {
        "build", "image", "ports", "restart", "init", "command", "environment",
        "user", "read_only", "tmpfs", "shm_size", "security_opt", "cap_drop", "stop_grace_period",
    }  # fmt: skip
    assert not unknown, f"the container of the tests heeds no {unknown} yet"
    assert compose.get("cap_drop", []) in ([], ["ALL"])
    last = {line.word: line.rest for line in image if line.stage == image[-1].stage}
    options, check = last["HEALTHCHECK"].split("CMD", 1)
    timeout = re.search(r"--timeout=(\d+)s", options)
    assert timeout
    return Service(
        user=compose.get("user", last["USER"]),
        folder=[line.rest for line in image if line.word == "WORKDIR"][-1],
        environment={
            **dict(pair.split("=", 1) for pair in shlex.split(last["ENV"])),
            **compose.get("environment", {}),
        },
        command=compose.get("command") or json.loads(last["CMD"]),
        health_check=json.loads(check),
        health_timeout_s=float(timeout[1]),
        read_only=compose.get("read_only", False),
        tmpfs=dict((*entry.split(":", 1), "")[:2] for entry in compose.get("tmpfs", [])),
        shm=compose.get("shm_size", "64m").removesuffix("b"),  # tmpfs says 1g for 1gb
        no_capabilities=bool(compose.get("cap_drop")),
        no_new_privileges="no-new-privileges:true" in compose.get("security_opt", []),
        stop_grace_s=seconds(compose.get("stop_grace_period", "10s")),
    )


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def context() -> Iterator[Path]:
    """The files of a build's context by relative path: what git has and the models, less .dockerignore."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = [Path(name) for name in listed.stdout.split("\0") if name]
    models = [path.relative_to(ROOT) for path in (ROOT / "models").rglob("*")]
    patterns = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in patterns if line.strip() and not line.startswith("#")]
    for path in (*tracked, *models):
        if (ROOT / path).is_file() and not ignored(path, rules):
            yield path


def ignored(path: Path, rules: list[str]) -> bool:
    """Whether .dockerignore leaves a file out: the last pattern decides that fits it or a folder it is in."""
    left_out = False
    names = [str(path), *(str(parent) for parent in path.parents)]
    for rule in rules:
        if any(_pattern(rule.removeprefix("!")).fullmatch(name) for name in names):
            left_out = not rule.startswith("!")
    return left_out


def _pattern(rule: str) -> re.Pattern[str]:
    """As Go's filepath.Match has it, and `**` for any number of folders."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", rule.strip("/"))
    said: dict[str, Any] = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(said.get(part, re.escape(part)) for part in parts))
