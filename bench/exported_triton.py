"""Compares an exported model repository in Triton with our server.

`python -m bench.exported_triton REPOSITORY TRITON_ENV`: TRITON_ENV is an environment with `nvidia-pytriton`
and `tokenizers`. Its Triton has the Python backend alone, so each ONNX model is replaced by a Python model
that asks our server. Tokenizers, postprocesses and ensembles are as exported. Both get the same texts,
together and each alone, and their answers are compared.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as v2
from rich.console import Console

from tests.support.free_ports import free_port
from tests.support.repository_process import RepositoryProcess

TEXTS = ("国足客场两球取胜", "央行宣布下调存款准备金率。" * 3, "in Washington, 王小在北京 🚀", "a")
PATIENCE_S = 60.0
REFUSED = "refused"
WHERE = re.compile(r"ensemble '[^']*', |version \d+\): ")  # in front of the model's own message
STAND_IN = Path(__file__).with_name("stand_in_model.py")
PARAMETER = 'parameters {{ key: "url" value {{ string_value: "{}" }} }}\n'


def write_stand_ins(repository: Path, copy: Path, url: str) -> None:
    """Copy the repository with a Python model in place of each ONNX model."""
    shutil.copytree(repository, copy)
    for program in copy.glob("*/1/model.onnx"):
        program.unlink()
        shutil.copyfile(STAND_IN, program.with_name("model.py"))
        config = program.parents[1] / "config.pbtxt"
        text = config.read_text("utf-8").replace('"onnxruntime"', '"python"')
        config.write_text(text + PARAMETER.format(url), "utf-8")


@contextmanager
def real_triton(environment: Path, models: Path, work: Path) -> Iterator[str]:
    """Serve the models with Triton, and yield the address of its gRPC port."""
    (server,) = environment.glob("lib/python3.*/site-packages/pytriton/tritonserver")
    version = re.search(r"python(3\.\d+)", str(server))
    assert version is not None
    stub = server / "python_backend_stubs" / version[1] / "triton_python_backend_stub"
    shutil.copytree(server / "backends", work / "backends")
    (work / "backends" / "python" / stub.name).symlink_to(stub)
    port = free_port()
    options = [f"--model-repository={models}", f"--backend-directory={work / 'backends'}"]
    options += [
        f"--grpc-port={port}",
        "--grpc-address=127.0.0.1",
        "--allow-http=false",
        "--allow-metrics=false",
    ]
    path = {"PATH": f"{environment / 'bin'}:/usr/bin:/bin", "VIRTUAL_ENV": str(environment)}
    with (work / "log").open("wb") as log:
        process = subprocess.Popen(
            [server / "bin" / "tritonserver", *options], stdout=log, stderr=log, env=path
        )
        try:
            _wait(f"127.0.0.1:{port}", work / "log")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _wait(address: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    with v2.InferenceServerClient(address) as client:
        while time.monotonic() < deadline:
            try:
                if client.is_server_ready():
                    return
            except v2.InferenceServerException:
                pass
            time.sleep(0.2)
    raise SystemExit(f"Triton is not ready:\n{log.read_text('utf-8', errors='replace')[-3000:]}")


def ask(address: str, model: str) -> list[dict[str, Any]]:
    """Return the outputs for all texts together and for each text, or the message of a refusal."""
    with v2.InferenceServerClient(address) as client:
        metadata = client.get_model_metadata(model)
        answers = []
        for texts in (TEXTS, *((text,) for text in TEXTS)):
            inputs = [v2.InferInput(tensor.name, [len(texts)], "BYTES") for tensor in metadata.inputs]
            for tensor in inputs:
                tensor.set_data_from_numpy(np.array([text.encode() for text in texts], object))
            try:
                answer = client.infer(model, inputs)
                answers.append({tensor.name: answer.as_numpy(tensor.name) for tensor in metadata.outputs})
            except v2.InferenceServerException as exc:
                why = WHERE.split(exc.message())[-1]
                answers.append({REFUSED: np.array([why], object)})
        return answers


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Return the largest difference of a score. Raises SystemExit for any other difference."""
    greatest = 0.0
    for name, array in ours.items():
        if array.dtype == np.float32 and array.shape == theirs[name].shape:
            greatest = max(greatest, float(np.abs(array - theirs[name]).max(initial=0)))
        elif name not in theirs or not np.array_equal(array, theirs[name]):
            raise SystemExit(f"{name} differs: {array} here, {theirs.get(name)} in Triton")
    return greatest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("environment", type=Path)
    given, console = parser.parse_args(), Console(soft_wrap=True)
    names = [path.parent.name for path in given.repository.glob("*/config.pbtxt")]
    ensembles = sorted(name for name in names if f"{name}_tokenizer" in names)
    with RepositoryProcess(given.repository) as ours, tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_stand_ins(given.repository, work / "models", ours.url)
        with real_triton(given.environment.absolute(), work / "models", work) as address:
            for name in ensembles:
                pairs = list(zip(ask(ours.rpc_address, name), ask(address, name), strict=True))
                differ = max(differences(*pair) for pair in pairs)
                refused = sum(REFUSED in mine for mine, _ in pairs)
                summary = f"{len(pairs)} requests, {refused} of them refused by both"
                console.print(f"{name}: {summary}; scores differ by {differ:.1e} at most")


if __name__ == "__main__":
    main()
