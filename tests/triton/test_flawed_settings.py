"""config.pbtxt with mistakes, told in the words of Triton, and settings that do not prevent a load."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.repository_process import RepositoryProcess


@pytest.fixture(scope="module")
def index(details: RepositoryProcess) -> dict[str, Any]:
    return {row["name"]: row for row in details.http("/v2/repository/index", b"").json}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "flawed_steps",
            "ensemble flawed_steps allows maximum batch size 8, but it contains model two_rows which only "
            "allows maximum batch size to be 2",
        ),
        ("flawed_type", "model input 'X' must specify 'data_type' for flawed_type"),
        ("flawed_reshape", "model input 'X' has different size for dims and reshape for flawed_reshape"),
        ("flawed_level", "priority queue policy must have priority level in range [1, 2] for flawed_level"),
        (
            "flawed_default",
            "default priority level must be in range [1, 2] for flawed_default",
        ),
        (
            "flawed_delay",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for "
            "flawed_delay",
        ),
        (
            "flawed_order",
            "Only one priority level is allowed when 'preserve_ordering' is true for flawed_order",
        ),
        (
            "flawed_cpu",
            "instance group flawed_cpu_0 of model flawed_cpu has kind KIND_CPU but specifies one or more "
            "GPUs",
        ),
        (
            "flawed_gpu",
            "instance group flawed_gpu_0 of model flawed_gpu specifies invalid or unsupported gpu id 99",
        ),
        (
            "flawed_seventh_gpu",
            "instance group flawed_seventh_gpu_0 of model flawed_seventh_gpu specifies invalid or "
            "unsupported gpu id 7",
        ),
        (
            "flawed_passive",
            "all instance groups of model flawed_passive are passive, and no instance would run requests",
        ),
        (
            "flawed_scalar",
            "model input 'X' cannot have empty reshape for non-batching model as scalar tensors are not "
            "supported for flawed_scalar",
        ),
        (
            "flawed_preference",
            "dynamic batching preferred size must be <= max batch size for flawed_preference",
        ),
        ("flawed_metrics", "metric control must specify 'histogram_options' for flawed_metrics"),
    ],
)
def test_a_mistake_is_told_in_the_words_of_triton(index: dict[str, Any], name: str, message: str) -> None:
    assert index[name]["state"] == "UNAVAILABLE"
    assert message in index[name]["reason"]


def test_settings_without_effect_do_not_prevent_a_load(
    details: RepositoryProcess, index: dict[str, Any]
) -> None:
    assert index["settings"]["state"] == index["two_rows"]["state"] == "READY", index
    assert "Model settings: its operator library 'libmine.so' (model_operations) has no effect" in details.log
    assert "metric_tags has the key 'not-a-label'" in details.log
    assert "its instance group 'idle' is passive, and has no instances here" in details.log
    assert "names the secondary device KIND_NVDLA 1, which has no effect" in details.log
    instances = details.http("/health/ready").json["ops"]["settings:1"]["instances"]
    assert instances == 1


def test_tags_of_a_model_are_labels_of_its_metrics(details: RepositoryProcess) -> None:
    assert (
        'nv_inference_count{model="settings",version="1",_team="vision"}'
        in details.http("/metrics").body.decode()
    )
