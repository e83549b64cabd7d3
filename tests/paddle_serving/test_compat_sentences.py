"""A text classifier in the shape of Paddle's examples and its clients: printed arrays both ways."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
import yaml

from client.pipeline_client import PipelineClient
from pipeline.engines import create_predictor
from pipeline.models.serving_model import ServingModel
from tests.support.free_ports import free_port
from tests.support.models import local_conf
from tests.support.service_process import APPS, ROOT, ServiceProcess

TEXTS = ["卡车超载致使跨桥侧翻，没那么简单", "消失的“外企光环”", 'it\'s \\ "quoted"\nand long, ' * 8]


@pytest.fixture(scope="module")
def service(classifier: ServingModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("app") / "sentences"
    shutil.copytree(APPS / "sentences", folder)
    conf = {"client_type": "local_predictor", "model_config": str(classifier.directory), "thread_num": 12}
    conf |= {"fetch_list": ["logits"], "device_type": 0, "devices": "", "use_mkldnn": True, "ir_optim": True}
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    config = {**ports, "op": {"seq_cls": {"concurrency": 1, "local_service_conf": conf}}}
    (folder / "config.yml").write_text(yaml.safe_dump(config), "utf-8")
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}"}
    with ServiceProcess(folder, ports, name="seq_cls", folder=folder, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def expected(classifier: ServingModel) -> np.ndarray:
    """The logits of each text by itself."""
    predictor = create_predictor(classifier, local_conf())
    rows = []
    for text in TEXTS:
        ids = np.array([[ord(character) % 64 for character in text]])
        feeds = {"input_ids": ids, "token_type_ids": ids * 0, "attention_mask": ids * 0 + 1}
        rows.append(predictor.run(feeds)["logits"][0])
    return np.array(rows)


@pytest.mark.parametrize("endpoint", ["rpc", "http"])
def test_printed_arrays_of_bytes_go_in_and_printed_lists_and_arrays_come_out(
    service: ServiceProcess, expected: np.ndarray, endpoint: str
) -> None:
    sentence = np.array([text.encode("utf-8") for text in TEXTS], dtype=np.object_)
    if endpoint == "rpc":
        with PipelineClient() as client:
            client.connect([f"127.0.0.1:{service.rpc_port}"])
            response = client.predict(feed_dict={"sentence": sentence})
        assert (response.err_no, list(response.key)) == (0, ["label", "confidence"])
        label, confidence = response.value
    else:
        answer = service.predict({"sentence": repr(sentence)})
        label, confidence = answer["label"], answer["confidence"]
    ranks = [",".join(map(str, np.argsort(-logits))) for logits in expected]
    assert ast.literal_eval(label) == ranks
    printed = confidence.removeprefix("array(").removesuffix(", dtype=float32)")
    np.testing.assert_allclose(ast.literal_eval(printed), expected.max(axis=-1), rtol=1e-4, atol=1e-6)


def test_a_sentence_that_is_no_array_is_this_request_s_error_alone(service: ServiceProcess) -> None:
    assert service.ask({"sentence": "just text"})["err_no"] == 10000
    assert service.ask({"sentence": "array(["})["err_no"] == 10000
    assert "label" in service.predict({"sentence": "array([b'ok'], dtype=object)"})
