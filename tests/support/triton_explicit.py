"""The repository behind the recorded cases of a Triton with model control: sound models and flawed ones.

The recordings tell its models' names and what each is refused for; their configurations are made to that.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.triton_repository import write_model

_IN, _OUT = (
    f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: 4 }}\n'
    for kind, name in (("input", "INPUT0"), ("output", "OUTPUT0"))
)
_HEAD = 'backend: "python"\nmax_batch_size: 8\n'
SOUND = f"{_HEAD}{_IN}{_OUT}"
_WARMUP = 'model_warmup {{ name: "w" batch_size: 1 {} }}'
_IDENTITY = """
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
"""
_COMPLETES = f"""{_IDENTITY}
    @staticmethod
    def auto_complete_config(config):
        config.add_input({{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}})
        config.add_output({{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}})
        config.set_max_batch_size(4)
        return config
"""
_FLAWED = {
    "bad_dtype": SOUND.replace("TYPE_FP32", "TYPE_FP31"),
    "cache_decoupled": (
        f"{SOUND}response_cache {{ enable: true }} model_transaction_policy {{ decoupled: true }}"
    ),
    "dup_input": f"{SOUND}{_IN}",
    # The recording does not show its configuration. Without a preferred size, Triton loads such a model.
    "dyn_nobatch": SOUND.replace("max_batch_size: 8", "max_batch_size: 0")
    + "dynamic_batching { preferred_batch_size: 4 }",
    "empty_dims": SOUND.replace(_IN, _IN.replace("dims: 4", "")),
    "gpu_kind": f"{SOUND}instance_group {{ kind: KIND_GPU }}",
    "kind_model": f"{SOUND}instance_group {{ kind: KIND_MODEL }}",
    "label_missing": SOUND.replace(_OUT, _OUT.replace("dims: 4", 'dims: 4 label_filename: "nope.txt"')),
    "neg_batch": SOUND.replace("max_batch_size: 8", "max_batch_size: -1"),
    "neg_dim": SOUND.replace(_IN, _IN.replace("dims: 4", "dims: -2")),
    "no_backend": SOUND.replace('backend: "python"', ""),
    "pref_gt_max": f"{SOUND}dynamic_batching {{ preferred_batch_size: 16 }}",
    "prio_default0": f"{SOUND}dynamic_batching {{ priority_levels: 2 }}",
    "prio_ordering": (
        f"{SOUND}dynamic_batching {{ priority_levels: 2 default_priority_level: 1 preserve_ordering: true }}"
    ),
    "reshape_bad": SOUND.replace(_IN, _IN.replace("dims: 4", "dims: 4 reshape { shape: 3 }")),
    "seq_and_dyn": f"{SOUND}dynamic_batching {{ }} sequence_batching {{ }}",
    "syntax": 'backend: "python" {',
    "unknown_backend": SOUND.replace('"python"', '"zzz"'),
    "onnx_backend": SOUND.replace('"python"', '"onnxruntime"'),
    "unknown_field": f"{SOUND}no_such_field: 3",
    "ver_specific_missing": f"{SOUND}version_policy {{ specific {{ versions: 7 }} }}",
    "warmup_fail": SOUND + _WARMUP.format(""),
    "warmup_file": SOUND
    + _WARMUP.format(
        'inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: 4 input_data_file: "missing" } }'
    ),
    "wrong_name": f'name: "other"\n{SOUND}',
    "zero_dim": SOUND.replace(_IN, _IN.replace("dims: 4", "dims: 0")),
}
_BROKEN_CODE = {
    "import_error": "import nonexistent_pkg_x\n",
    "init_raises": (
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n"
        "        raise RuntimeError('init failed here')\n"
    ),
    "no_class": "x = 1\n",
    "no_execute": "class TritonPythonModel:\n    pass\n",
    "py_syntax": "class class:\n",
}
_STEP = (
    '{{ model_name: "{model}" model_version: -1 input_map {{ key: "{feed}" value: "{given}" }} '
    'output_map {{ key: "OUTPUT0" value: "{made}" }} }}'
)
_ENSEMBLE_HEAD = """
platform: "ensemble"
max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: 4 }
output { name: "B" data_type: TYPE_FP32 dims: 4 }
"""


def _ensemble(*steps: dict[str, str], more: str = "") -> str:
    usual = {"model": "good", "feed": "INPUT0", "given": "A", "made": "B"}
    told = ", ".join(_STEP.format(**(usual | step)) for step in steps)
    scheduling = f"ensemble_scheduling {{ step [ {told} ] }}" if steps else "ensemble_scheduling { }"
    return f"{_ENSEMBLE_HEAD}{more}{scheduling}"


_ENSEMBLES = {
    "ens_bad_key": _ensemble({"feed": "ZZ"}),
    "ens_circular": _ensemble({"given": "m", "made": "n"}, {"given": "n", "made": "m"}, {}),
    "ens_dup_tensor": _ensemble({}, {"model": "good2"}),
    "ens_missing_model": _ensemble({"model": "nope"}),
    "ens_nostep": _ensemble(),
    "ens_nover": _ensemble({}),
    "ens_ok": _ensemble({"made": "m"}, {"model": "good2", "given": "m"}),
    "ens_unmapped_out": _ensemble({"made": "C"}),
    "ens_unused_in": _ensemble({}, more='input { name: "Z" data_type: TYPE_FP32 dims: 4 }'),
}


def write_explicit(repository: Path) -> Path:
    """The models that the recordings name."""
    for name in ("good", "good2"):
        write_model(repository, name, SOUND, _IDENTITY)
    for name, config in _FLAWED.items():
        write_model(repository, name, config, _IDENTITY)
    for name, code in _BROKEN_CODE.items():
        (write_model(repository, name, SOUND) / "1" / "model.py").write_text(code, "utf-8")
    for name, config in _ENSEMBLES.items():
        folder = write_model(repository, name, config)
        if name == "ens_nover":
            (folder / "1").rmdir()
    write_model(repository, "noconfig_auto", None, _COMPLETES)
    (write_model(repository, "no_version", SOUND) / "1").rmdir()
    (repository / "emptydir").mkdir()
    (repository / "stray.txt").write_text("no model\n", "utf-8")
    for name, versions, policy in (
        ("ver_all", "12", "all { }"),
        ("ver_latest2", "123", "latest { num_versions: 2 }"),
    ):
        for version in [*versions, "10"] if name == "ver_latest2" else versions:
            write_model(repository, name, f"{SOUND}version_policy {{ {policy} }}", _IDENTITY, version=version)
    return repository
