"""The frame of the project: locks, install lines, images, import weight, documents in two languages."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from pipeline.config.config_file import load_config
from pipeline.front.scheduler.scheduler import WORKER_GRACE_S

ROOT = Path(__file__).resolve().parents[2]
LIMITS_MB = {"paddlewheel": 225, "docker/Dockerfile": 1000, "docker/Dockerfile.onnx": 300}
INSTALL_WORDS = re.compile(r"\b(pip|apt-get|apt|apk|conda|uv)\s")
FRAMEWORKS = {"paddle", "onnxruntime", "openvino", "torch", "tokenizers"}


def pins(lock: Path) -> dict[str, str]:
    """Version by name of a lock file's own lines."""
    lines = [line for line in lock.read_text(encoding="utf-8").splitlines() if "==" in line]
    return dict(line.split()[0].split("==") for line in lines)


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def tracked_files(root: Path) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    return [root / name for name in listed.stdout.split("\0") if name and (root / name).is_file()]


def code_blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(encoding="utf-8"), re.M | re.S)


def without_comments(block: str) -> list[str]:
    return [re.sub(r"\s+# .*", "", line) for line in block.splitlines()]


def printed_by(code: str) -> str:
    """What a fresh interpreter prints, run in the project's folder."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def trim(root: Path) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "docker")
        yield importlib.import_module("trim")


@pytest.fixture(scope="module")
def sizes_mb(trim: ModuleType) -> dict[str, float]:
    """What docker/sizes.py prints, by the name of the row."""
    sizes = importlib.import_module("sizes")
    return {**sizes.environments_mb(), **sizes.images_mb()}


class TestLocks:
    @pytest.mark.parametrize(
        ("name", "least"),
        [
            ("onnx.txt", 10),
            ("serving.txt", 10),
            ("to-onnx.txt", 3),
            ("dev.txt", 10),
            ("page.txt", 1),
            ("ray.txt", 1),
            ("system.txt", 1),
            ("mutants.txt", 1),
            ("convert.txt", 10),
            ("torch.txt", 1),
            ("paddlenlp-constraints.txt", 10),
        ],
    )
    def test_a_lock_holds_exact_versions_and_names_no_host(self, root: Path, name: str, least: int) -> None:
        lines = (root / "requirements" / name).read_text(encoding="utf-8").splitlines()
        packages = [line for line in lines if not line.startswith(("#", "-r "))]
        assert len(packages) >= least
        assert [
            line
            for line in packages
            if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*( --hash=sha256:[0-9a-f]{64})*", line)
        ] == []

    @pytest.mark.parametrize(
        "name",
        [
            *("onnx.txt", "serving.txt", "to-onnx.txt", "dev.txt", "page.txt", "ray.txt", "system.txt"),
            "mutants.txt",
        ],
    )
    def test_what_serves_and_what_is_beside_it_is_locked_by_hashes(self, root: Path, name: str) -> None:
        lines = (root / "requirements" / name).read_text(encoding="utf-8").splitlines()
        assert [
            line for line in lines if not line.startswith(("#", "-r ")) and "--hash=sha256:" not in line
        ] == []
        script = (root / "docker/install.sh").read_text(encoding="utf-8")
        plain = re.findall(r"pip_install .*--requirement requirements/([\w-]+\.txt)", script)
        assert name not in plain
        assert "--require-hashes" in script.split("install_locked() {")[1].split("}")[0]

    def test_a_file_of_another_content_than_the_locked_is_refused(self, root: Path, tmp_path: Path) -> None:
        lines = (root / "requirements/serving.txt").read_text("utf-8").splitlines()
        (pin,) = [line for line in lines if line.startswith("click==")]
        locked, *hashes = pin.split()
        folder = f"{locked.replace('==', '-')}.dist-info"
        wheel = tmp_path / f"{locked.replace('==', '-')}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            name, version = locked.split("==")
            metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            archive.writestr(f"{folder}/METADATA", metadata)
            archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{folder}/RECORD", "")
        lock = tmp_path / "lock.txt"
        lock.write_text(f"click @ {wheel.as_uri()} {' '.join(hashes)}\n", "utf-8")
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps"]
        command += ["--ignore-installed", "--require-hashes", "--requirement", str(lock)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "DO NOT MATCH THE HASHES" in done.stderr, done.stderr

    def test_every_dependency_is_pinned(self, root: Path) -> None:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        compat = tomllib.loads((root / "compat/pyproject.toml").read_text(encoding="utf-8"))["project"]
        options = project["project"]["optional-dependencies"]
        extras = [
            line for name, extra in options.items() for line in extra
            if name not in ("torch", "ray", "s3", "redis") and not line.startswith("paddlewheel[")
        ]  # fmt: skip
        for asked, lock in (
            (compat["optional-dependencies"]["vision"], "dev.txt"),
            (compat["optional-dependencies"]["speech"], "dev.txt"),
            (compat["optional-dependencies"]["nlp"], "serving.txt"),
            (project["project"]["dependencies"] + project["build-system"]["requires"], "onnx.txt"),
            (extras, "serving.txt"),
            (project["dependency-groups"]["to-onnx"], "to-onnx.txt"),
            (project["dependency-groups"]["dev"], "dev.txt"),
            (project["dependency-groups"]["page"], "page.txt"),
            (project["dependency-groups"]["system"] + options["s3"] + options["redis"], "system.txt"),
            (project["dependency-groups"]["ray"] + options["ray"], "ray.txt"),
            (project["dependency-groups"]["mutants"], "mutants.txt"),
            (project["dependency-groups"]["torch"], "torch.txt"),
            (
                project["project"]["dependencies"] + extras + project["dependency-groups"]["convert"],
                "convert.txt",
            ),
        ):
            names = {normalised(re.split(r"[\[<>=!~ ]", line)[0]) for line in asked}
            assert names - {normalised(name) for name in pins(root / "requirements" / lock)} == set()

    def test_without_extras_a_part_of_the_serving_lock_is_needed(self, root: Path) -> None:
        small, serving = (pins(root / "requirements" / name) for name in ("onnx.txt", "serving.txt"))
        assert small.items() < serving.items()
        assert {"paddlepaddle", "pillow", "tokenizers", "scipy"} <= serving.keys() - small.keys()

    def test_the_conversion_environment_names_neither_pytorch_nor_cuda(self, root: Path) -> None:
        named = {normalised(name) for name in pins(root / "requirements/convert.txt")}
        assert {name for name in named if name.startswith(("torch", "triton", "nvidia", "cuda"))} == set()

    def test_all_extras_but_pytorch_ray_s3_and_redis_are_the_others_together(self, root: Path) -> None:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        *others, last = (
            name for name in project["optional-dependencies"] if name not in ("torch", "ray", "s3", "redis")
        )
        assert (last, project["optional-dependencies"][last]) == ("all", [f"paddlewheel[{','.join(others)}]"])

    def test_the_tests_run_on_the_pinned_versions(self, root: Path) -> None:
        locked = pins(root / "requirements/serving.txt")
        assert {name: importlib.metadata.version(name) for name in locked} == locked

    def test_paddlenlp_beside_a_service_leaves_numpy_and_nearly_all_others_alone(self, root: Path) -> None:
        serving, convert, beside = (
            {normalised(name): version for name, version in pins(root / "requirements" / lock).items()}
            for lock in ("serving.txt", "convert.txt", "paddlenlp-constraints.txt")
        )
        assert "paddlenlp" in beside and beside["numpy"] == serving["numpy"]
        assert beside.items() <= convert.items()
        others = {name for name in beside.keys() & serving if beside[name] != serving[name]}
        assert others <= {"fsspec", "huggingface-hub"}  # of datasets and PaddleNLP; tokenizers runs on either

    def test_the_extra_for_images_takes_what_the_tests_run_on(self, root: Path) -> None:
        compat = tomllib.loads((root / "compat/pyproject.toml").read_text(encoding="utf-8"))
        vision = dict(line.split("==") for line in compat["project"]["optional-dependencies"]["vision"])
        assert vision["opencv-python-headless"].startswith("4.")  # OpenCV 5 gives other crops
        locked = pins(root / "requirements/dev.txt")
        for name, series in vision.items():
            assert fnmatch(locked[name], series)
            assert importlib.metadata.version(name) == locked[name]

    def test_the_development_lock_repeats_no_serving_pin(self, root: Path) -> None:
        assert (
            set(pins(root / "requirements/serving.txt")) & set(pins(root / "requirements/dev.txt")) == set()
        )


class TestInstallLines:
    @pytest.mark.parametrize(
        ("name", "steps"),
        [
            ("docker/Dockerfile", {"venv", "serving", "project"}),
            ("docker/Dockerfile.gpu", {"venv", "gpu", "project"}),
            ("docker/Dockerfile.onnx", {"venv", "onnx", "package"}),
            ("Makefile", {"venv", "serving", "project"}),
        ],
    )
    def test_images_and_make_install_through_one_script(self, root: Path, name: str, steps: set[str]) -> None:
        text = "\n".join(
            line for line in (root / name).read_text(encoding="utf-8").splitlines() if line[:1] != "#"
        )
        assert INSTALL_WORDS.findall(text) == []
        assert steps <= set(re.findall(r"docker/install\.sh (\w+)", text))

    def test_both_images_and_make_install_the_same_lock(self, root: Path) -> None:
        steps = {
            name: re.findall(r"docker/install\.sh (\w+)", (root / name).read_text(encoding="utf-8"))
            for name in ("Makefile", "docker/Dockerfile", "docker/Dockerfile.gpu")
        }
        assert "serving" in steps["Makefile"]
        assert "serving" in steps["docker/Dockerfile"]
        assert "gpu" in steps["docker/Dockerfile.gpu"]
        script = (root / "docker/install.sh").read_text(encoding="utf-8")
        assert re.findall(r"requirements/\w+\.txt", script.split("serving)")[1].split("project)")[0]) == [
            "requirements/serving.txt"
        ]

    def test_images_get_the_system_library_that_make_asks_for(self, root: Path) -> None:
        script = (root / "docker/install.sh").read_text(encoding="utf-8")
        assert "libgomp.so.1" in script
        assert "libgomp1" in (root / "docker/native.txt").read_text(encoding="utf-8").split()
        for name in ("docker/Dockerfile", "docker/Dockerfile.gpu", "docker/Dockerfile.onnx"):
            assert "docker/install.sh native" in (root / name).read_text(encoding="utf-8")

    @pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.onnx"])
    def test_the_base_image_has_its_digest(self, root: Path, name: str) -> None:
        lines = (root / "docker" / name).read_text(encoding="utf-8").splitlines()
        bases = [line for line in lines if line.startswith("ARG BASE")]
        assert len(bases) == 1 and re.fullmatch(r"ARG BASE=python:3\.11-slim@sha256:[0-9a-f]{64}", bases[0])

    def test_the_gpu_image_refuses_a_missing_package_index(self, root: Path) -> None:
        done = subprocess.run(
            ["docker/install.sh", "gpu", "/nowhere", ""],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "PADDLE_INDEX" in done.stderr

    @pytest.mark.parametrize(
        ("lacks", "told"),
        [
            ("version_info", "Python 3.11-3.13 is needed"),
            ("ensurepip", "apt-get install python3-venv"),
            ("libgomp", "docker/install.sh native"),
        ],
    )
    def test_a_machine_that_lacks_something_is_told_so_in_one_sentence(
        self, root: Path, tmp_path: Path, lacks: str, told: str
    ) -> None:
        python = tmp_path / "python3"
        python.write_text(
            f'#!/bin/sh\ncase "$*" in *{lacks}*) exit 1 ;; esac\nexec {sys.executable} "$@"\n',
            encoding="utf-8",
        )
        python.chmod(0o755)
        done = subprocess.run(
            ["docker/install.sh", "venv", str(tmp_path / "venv"), str(python)],
            cwd=root, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "venv").exists()

    @pytest.mark.parametrize(
        ("named", "told"),
        [
            ("", "by root with apt-get alone: install Chromium"),
            ("/nowhere/chromium", "CHROMIUM names '/nowhere/c"),
        ],
    )
    def test_a_machine_that_can_get_no_browser_is_told_so_in_one_sentence(
        self, root: Path, tmp_path: Path, named: str, told: str
    ) -> None:
        user = tmp_path / "id"
        user.write_text("#!/bin/sh\necho 1000\n", encoding="utf-8")
        user.chmod(0o755)
        done = subprocess.run(
            ["/bin/sh", "docker/install.sh", "browser"],
            cwd=root, env={"PATH": str(tmp_path), "CHROMIUM": named},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (1, "")
        assert told in done.stderr and done.stderr.count("\n") == 1

    def test_pytorch_is_installed_where_it_is_asked_for_alone(self, root: Path) -> None:
        def steps(*arguments: str) -> list[str]:
            command = ["make", "--dry-run", "--always-make", *arguments]
            told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
            return re.findall(r"^docker/install\.sh (torch \S+ \S+)", told, re.M)

        assert steps("convert-env") == []
        assert steps("convert-env", "TORCH_INDEX=pip") == ["torch .venv-convert pip"]
        assert steps("convert-env", "TORCH_INDEX=file:///wheels") == ["torch .venv-convert file:///wheels"]
        assert steps("test-convert") == ["torch .venv-convert pip"]


class TestSizes:
    @pytest.mark.parametrize("name", LIMITS_MB)
    def test_it_stays_under_its_limit(self, sizes_mb: dict[str, float], name: str) -> None:
        assert 0.8 * LIMITS_MB[name] < sizes_mb[name] < LIMITS_MB[name]

    @pytest.mark.parametrize("name", ["README.md", "README_zh.md"])
    def test_the_readme_has_the_sizes(self, root: Path, sizes_mb: dict[str, float], name: str) -> None:
        rows = re.findall(r"^\| `([^`]+)` .*\| (\d+) MB \|$", (root / name).read_text("utf-8"), re.M)
        told = {what: int(megabytes) for what, megabytes in rows}
        assert told.keys() == sizes_mb.keys()
        assert {what: told[what] == pytest.approx(size, rel=0.03) for what, size in sizes_mb.items()} == (
            dict.fromkeys(told, True)
        )


class TestImages:
    def test_nothing_that_serving_has_loaded_is_trimmed(self, root: Path, trim: ModuleType) -> None:
        """What paddle, with its oneDNN and bf16 kernels, and ONNX Runtime map and import to run a model."""
        site_packages = Path(importlib.metadata.distribution("paddlepaddle").locate_file(""))  # type: ignore[arg-type]
        patterns = [p for p in trim.read_patterns(root / "docker/trim.txt") if not p.endswith(".pyc")]
        trimmed = {str(path) for path in trim.trimmed_files(site_packages, patterns)}
        model = root / "tests/fixtures/onnx/images.onnx"
        command = [sys.executable, "-c", LOADED_BY_A_RUN, str(model)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        loaded = {line for line in done.stdout.splitlines() if line.startswith(str(site_packages))}
        assert len(loaded) > 300
        assert len(trimmed) > 300
        assert loaded & trimmed == set()

    @pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.gpu", "Dockerfile.onnx"])
    def test_images_run_as_another_user_and_check_readiness(self, root: Path, name: str) -> None:
        last_stage = (root / "docker" / name).read_text(encoding="utf-8").rsplit("\nFROM ", 1)[1]
        assert "\nUSER serving\n" in last_stage
        assert "HEALTHCHECK" in last_stage and "pipeline.process.health_check" in last_stage
        assert "EXPOSE 18082 8088" in last_stage

    def test_compose_waits_until_the_service_has_drained(self, root: Path) -> None:
        compose = yaml.safe_load((root / "docker/compose.yml").read_text(encoding="utf-8"))
        grace = compose["services"]["paddlewheel"]["stop_grace_period"]
        dag = load_config(root / "config.yml").dag
        delay_s = max(dag.drain_delay, 5)  # the file's advice for a load balancer
        assert int(grace.removesuffix("s")) > delay_s + dag.drain_timeout + WORKER_GRACE_S


LOADED_BY_A_RUN = """
import sys, tempfile
import numpy as np, paddle, tokenizers, grpc.aio, uvloop, httptools, httpx, pydantic, yaml, msgspec
from paddle import inference
paddle.seed(0)
net = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.GELU(), paddle.nn.LayerNorm(8))
net.eval()
folder = tempfile.mkdtemp()
spec = [paddle.static.InputSpec([None, 8], "float32", "x")]
paddle.jit.save(paddle.jit.to_static(net, input_spec=spec), folder + "/m")
config = inference.Config(folder + "/m.json", folder + "/m.pdiparams")
config.enable_mkldnn()
config.enable_mkldnn_bfloat16()
predictor = inference.create_predictor(config)
handle = predictor.get_input_handle("x")
handle.copy_from_cpu(np.ones((2, 8), "float32"))
predictor.run()
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {"image": np.ones((1, 3, 2, 2), "float32")})
files = {line.split()[-1] for line in open("/proc/self/maps")}
files |= {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
print("\\n".join(sorted(files)))
"""


class TestImports:
    def test_importing_the_package_imports_no_framework(self) -> None:
        assert imported_by("pipeline") & FRAMEWORKS == set()

    def test_the_front_process_imports_no_framework(self) -> None:
        assert imported_by("pipeline.front.lifecycle") & FRAMEWORKS == set()

    def test_a_worker_imports_grpc_and_asyncio_where_its_op_needs_them(self) -> None:
        assert imported_by("pipeline.worker.main") & (FRAMEWORKS | {"grpc", "asyncio"}) == set()

    def test_the_clients_import_nothing_of_the_server(self) -> None:
        assert (
            imported_by("client.http_client, client.rpc_client") & (FRAMEWORKS | {"pipeline", "convert"})
            == set()
        )


def imported_by(modules: str) -> set[str]:
    """The top-level names in sys.modules after an import in a fresh interpreter."""
    code = f"import sys, {modules}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    return set(printed_by(code).split())


class TestDocuments:
    def test_both_readmes_have_the_same_sections(self, root: Path) -> None:
        levels = [
            [len(hashes) for hashes in re.findall(r"^(#+) ", (root / name).read_text(encoding="utf-8"), re.M)]
            for name in ("README.md", "README_zh.md")
        ]
        assert levels[0] == levels[1]
        assert len(levels[0]) > 5

    @pytest.mark.parametrize("language", ["sh", "python", "yaml", "json"])
    def test_both_readmes_show_the_same_commands_and_code(self, root: Path, language: str) -> None:
        english, chinese = (
            [without_comments(block) for block in code_blocks(root / name, language)]
            for name in ("README.md", "README_zh.md")
        )
        assert english == chinese
        assert english != []

    def test_the_readme_s_python_is_python(self, root: Path) -> None:
        for block in code_blocks(root / "README.md", "python"):
            ast.parse(block)

    def test_the_readme_s_configuration_is_accepted(self, root: Path) -> None:
        blocks = map(yaml.safe_load, code_blocks(root / "README.md", "yaml"))
        sections = {key: value for block in blocks for key, value in block.items()}
        config = load_config(sections, op_overrides={"sentiment": {}})
        assert (config.http_port, config.tls is not None) == (18082, True)
        assert config.op["sentiment"].concurrency == 2

    @pytest.mark.parametrize("name", ["README.md", "README_zh.md", "docs/design.md"])
    def test_every_file_a_document_links_to_exists(self, root: Path, name: str) -> None:
        document = root / name
        links = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
        assert [link for link in links if not (document.parent / link).exists()] == []

    def test_every_file_that_the_design_names_as_a_place_exists(self, root: Path) -> None:
        places = (root / "docs/design.md").read_text(encoding="utf-8").split("## 9. ")[1]
        files = set(re.findall(r"`((?:[\w.]+/)*\w+\.(?:py|yml|md|sh|txt|toml))`", places))
        assert len(files) > 15
        assert sorted(file for file in files if not (root / file).exists()) == []

    def test_every_make_target_of_the_readme_exists(self, root: Path) -> None:
        targets = set(re.findall(r"make ([a-z-]+)", " ".join(code_blocks(root / "README.md", "sh"))))
        for target in sorted(targets):
            subprocess.run(["make", "--dry-run", target], cwd=root, capture_output=True, check=True)
        assert {"serve", "test", "setup", "bench", "docker"} <= targets


def test_no_tracked_text_names_a_package_index_or_someone_s_folder(root: Path) -> None:
    forbidden = re.compile(
        "|".join(["py" + "pi.org", "python" + "hosted", "/ro" + "ot/", "/ho" + "me/", "/wo" + "rk/"])
    )
    found = []
    for path in tracked_files(root):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.name}: {match}" for match in forbidden.findall(text)]
    assert found == []
