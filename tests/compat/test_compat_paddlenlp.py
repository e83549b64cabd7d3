"""PaddleNLP's names without PaddleNLP: who finds them, what they answer, where files are looked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import yaml

from client.values import parse_value
from convert.steps.conversion_environment import missing_packages
from pipeline.engines import create_predictor
from pipeline.models.serving_model import ServingModel
from tests.support.free_ports import free_port
from tests.support.models import local_conf
from tests.support.service_process import APPS, ROOT, ServiceProcess

COMPAT = ROOT / "compat"
WORDS = (
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", "\u0085", "\u00a0", "\u3000", "\u0301",
    *"国足客场两球取胜的好不", "℃", "##℃", "5", "hello", "##s", ",", "，", "a", "b", "##c",
)  # fmt: skip
Run = Callable[..., str]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with bert-base-chinese/vocab.txt."""
    folder = tmp_path / "bert-base-chinese"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    return tmp_path


@pytest.fixture
def run(home: Path) -> Run:
    """Runs Python code in that folder, as an app with compat; what it prints."""

    def printed(code: str, *path: Path, fails: bool = False, **env: str) -> str:
        search = os.pathsep.join(map(str, (*path, ROOT, COMPAT)))
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("PPNLP", "PADDLENLP", "HF_"))}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=home, capture_output=True, text=True, check=False,
            env=keep | {"PYTHONPATH": search, "HOME": str(home / "nobody")} | env,
        )  # fmt: skip
        assert bool(done.returncode) is fails, done.stderr
        return done.stderr if fails else done.stdout.strip()

    return printed


def real_paddlenlp(folder: Path) -> Path:
    """A folder with another package of that name, as PaddleNLP is where it is installed."""
    package = folder / "site" / "paddlenlp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = 'real'\n", "utf-8")
    return package.parent


FOUND = """
import paddlenlp, importlib.util as u
print(paddlenlp.__version__, u.find_spec('fast_tokenizer') is None)
"""


def test_paddlenlp_is_found_where_nobody_else_finds_it(run: Run, home: Path) -> None:
    assert run(FOUND) == "2.8.1 False"
    assert run(FOUND, real_paddlenlp(home)) == "real True"
    late = "import sys, paddlenlp_shims.finder; sys.path.insert(0, 'site')" + FOUND
    assert run(late) == "real True"
    assert run("import sys; print(type(sys.meta_path[-1]).__name__)") == "ShimFinder"


def test_an_installation_has_the_finder_in_every_start_of_python(tmp_path: Path) -> None:
    code = (
        "import paddlenlp, fast_tokenizer; from paddlenlp.transformers.ernie.tokenizer import ErnieTokenizer"
    )
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    installed = metadata.files("paddlewheel-compat") or ()
    assert "paddlenlp_shims.pth" in map(str, installed)


def test_a_checkout_offers_the_names_where_nothing_is_installed(run: Run) -> None:
    code = f"""
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "compat" not in str(f) and "ShimFinder" not in str(f)]
sys.path[:] = [entry for entry in sys.path if entry != {str(COMPAT)!r}]
for name in ("paddlenlp_shims", "paddlenlp_shims.finder"):
    del sys.modules[name]
from pipeline.process.app_modules import offer_paddle_serving_names
offer_paddle_serving_names()
import paddlenlp
print(paddlenlp.__file__)
"""
    assert run(code) == str(COMPAT / "paddlenlp_shims" / "paddlenlp" / "__init__.py")


def test_conversion_does_not_take_these_names_for_paddlenlp() -> None:
    assert missing_packages(["paddlenlp", "numpy"]) == ["paddlenlp"]


def test_a_part_that_the_real_package_lacks_is_not_taken_from_here(run: Run, home: Path) -> None:
    told = run("import paddlenlp.transformers", real_paddlenlp(home), fails=True)
    assert told.strip().endswith("No module named 'paddlenlp.transformers'")


def test_a_start_of_python_imports_nothing_but_the_finder(run: Run) -> None:
    loaded = "import sys; print(sorted(m for m in sys.modules if 'paddlenlp' in m or 'tokenizers' in m))"
    assert run(loaded) == "['paddlenlp_shims', 'paddlenlp_shims.finder']"
    heavy = (
        "import paddlenlp, sys; paddlenlp.transformers; "
        "print('tokenizers' in sys.modules, 'paddle' in sys.modules)"
    )
    assert run(heavy) == "False False"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from paddlenlp.transformers import ErnieModel", "paddlenlp.transformers.ErnieModel"),
        ("import paddlenlp.taskflow", "paddlenlp.taskflow"),
        ("from paddlenlp import Taskflow", "paddlenlp.Taskflow"),
        ("import paddlenlp; paddlenlp.Taskflow", "paddlenlp.Taskflow"),
        ("from paddlenlp.data import DataCollatorWithPadding", "paddlenlp.data.DataCollatorWithPadding"),
        (
            "from paddlenlp.transformers.bert.modeling import BertModel",
            "paddlenlp.transformers.bert.modeling",
        ),
        ("from fast_tokenizer import normalizers", "fast_tokenizer.normalizers"),
    ],
)
def test_what_is_not_here_is_told_in_a_sentence(run: Run, code: str, name: str) -> None:
    last = run(code, fails=True).strip().splitlines()[-1]
    assert f"{name} is not in Paddlewheel's compat" in last and "install PaddleNLP itself" in last
    caught = f"try:\n    {code}\nexcept (ImportError, AttributeError):\n    print('caught')"
    assert run(caught) == "caught"


def test_whoever_asks_for_an_attribute_is_told_the_truth(run: Run) -> None:
    code = "import paddlenlp as p; print(hasattr(p, 'Taskflow'), hasattr(p.transformers, 'x'))"
    assert run(code) == "False False"


@pytest.mark.parametrize(
    "imports",
    [
        "from paddlenlp.transformers import BertTokenizer as T",
        "from paddlenlp.transformers.bert.tokenizer import BertTokenizer as T",
        "from paddlenlp.transformers.bert.faster_tokenizer import BertFasterTokenizer as T",
        "from paddlenlp.transformers.bert.fast_tokenizer import BertFastTokenizer as T",
        "from paddlenlp.transformers import BertFasterTokenizer as T",
        "from paddlenlp.transformers import AutoTokenizer as T",
        "import paddlenlp as ppnlp; T = ppnlp.transformers.BertTokenizer",
        "import paddlenlp.transformers as t; T = t.RobertaChineseTokenizer",
        "from paddlenlp.transformers.tokenizer_utils import PretrainedTokenizer as P; "
        "from paddlenlp.transformers import BertTokenizer as T; assert issubclass(T, P)",
    ],
)
def test_a_tokenizer_is_reached_by_each_of_its_names(run: Run, imports: str) -> None:
    code = f"{imports}; t = T.from_pretrained('bert-base-chinese'); print(t('国足, b')['input_ids'])"
    assert run(code) == "[2, 10, 11, 26, 29, 3]"


def test_only_a_line_feed_ends_a_line_of_a_vocabulary(run: Run) -> None:
    code = """
from paddlenlp.transformers import BertTokenizer
t = BertTokenizer.from_pretrained("bert-base-chinese")
odd = ["\\u2028", "\\u0085", "\\u00a0", "\\u3000", "国", "##c"]
print(len(t), t.convert_tokens_to_ids(odd), t.vocab["好"])
"""
    assert run(code) == f"{len(WORDS)} [5, 6, 7, 8, 10, {len(WORDS) - 1}] 19"


def test_symbols_are_words_but_for_the_tokenizers_in_cpp(run: Run) -> None:
    code = """
from paddlenlp.transformers import BertTokenizer, BertFasterTokenizer
for kind in BertTokenizer, BertFasterTokenizer:
    t = kind.from_pretrained("bert-base-chinese")
    print(t.tokenize("5℃"), type(t.vocab).__name__)
"""
    assert run(code) == "['5', '℃'] Vocab\n['5', '##℃'] dict"


def test_the_packages_in_cpp_are_called_as_they_were(run: Run) -> None:
    for package, read in (("faster_tokenizers", "get_vocab_from_file"), ("fast_tokenizer", "read_file")):
        kind = "ErnieFastTokenizer" if package == "fast_tokenizer" else "ErnieFasterTokenizer"
        code = f"""
from {package} import {kind}, models
t = {kind}(models.WordPiece.{read}("bert-base-chinese/vocab.txt"), max_sequence_len=6)
one, two = t.encode_batch(["国足客场两球", "hellos"])
print(one.get_ids(), one.get_type_ids(), two.ids, two.tokens, two.offsets, t.encode("a", "b").type_ids)
"""
        assert run(code) == (
            "[2, 10, 11, 12, 13, 3] [0, 0, 0, 0, 0, 0] [2, 24, 25, 3] ['[CLS]', 'hello', '##s', '[SEP]'] "
            "[(0, 0), (0, 5), (5, 6), (0, 0)] [0, 0, 0, 1, 1]"
        )


FROM = "from paddlenlp.transformers import AutoTokenizer as A; print(A.from_pretrained({!r}).tokenize('国A'))"


@pytest.mark.parametrize(
    ("place", "variable", "value"),
    [
        ("./{}", "", ""),
        ("cache/models/{}", "PPNLP_HOME", "cache"),
        ("nobody/.paddlenlp/models/{}", "", ""),
        ("all/{}", "PADDLENLP_HOME", "all"),
        ("hub/models--google--{}/snapshots/abc", "HF_HUB_CACHE", "hub"),
        ("hf/hub/models--{}/snapshots/abc", "HF_HOME", "hf"),
        ("mine/{}", "PADDLEWHEEL_MODELS", "mine"),
    ],
)
def test_a_models_files_are_found_where_they_may_lie(
    run: Run, home: Path, place: str, variable: str, value: str
) -> None:
    folder = home / place.format("bert-base-chinese")
    if folder != home / "bert-base-chinese":
        folder.parent.mkdir(parents=True)
        shutil.move(home / "bert-base-chinese", folder)
    # What PaddleNLP knows by name: this model is not made lower case.
    assert (
        run(FROM.format("bert-base-chinese"), **({variable: value} if variable else {})) == "['国', '[UNK]']"
    )


def test_a_file_by_the_name_that_old_downloads_had_is_found(run: Run, home: Path) -> None:
    folder = home / "cache/models/ernie-1.0"
    folder.mkdir(parents=True)
    shutil.move(home / "bert-base-chinese/vocab.txt", folder / "ernie_1.0_vocab.txt")
    assert run(FROM.format("ernie-1.0"), PPNLP_HOME="cache") == "['国', 'a']"


def test_files_that_are_nowhere_are_asked_for_in_one_sentence(run: Run, home: Path) -> None:
    last = run(FROM.format("ernie-3.0-medium-zh"), PPNLP_HOME="cache", fails=True).strip().splitlines()[-1]
    assert last.startswith("FileNotFoundError: ErnieTokenizer 'ernie-3.0-medium-zh' needs vocab.txt")
    assert "nothing is downloaded" in last and "cache/models/ernie-3.0-medium-zh/" in last
    assert "$PADDLEWHEEL_MODELS" in last
    assert "needs tokenizer_config.json" in run(FROM.format("my/model"), fails=True)


def test_what_was_saved_is_loaded_again(run: Run, home: Path) -> None:
    code = """
from paddlenlp.transformers import AutoTokenizer, ErnieTokenizer
t = ErnieTokenizer.from_pretrained("bert-base-chinese", do_lower_case=True)
t.add_tokens(["两球"])
t.add_special_tokens({"additional_special_tokens": ["<e>"]})
files = t.save_pretrained("saved")
again = AutoTokenizer.from_pretrained("saved", use_fast=True)
text = "<e>国足A两球"
print(type(again).__name__, again(text) == t(text), again.tokenize(text), len(again) - len(t))
"""
    assert run(code) == "ErnieTokenizer True ['<e>', '国', '足', 'a', '两球'] 0"
    assert (
        json.loads((home / "saved/tokenizer_config.json").read_text())["tokenizer_class"] == "ErnieTokenizer"
    )


def test_batch_functions_pad_stack_and_join(run: Run) -> None:
    code = """
import numpy as np
from paddlenlp.data import Dict, Pad, Stack, Tuple, Vocab
ids, label = Tuple(Pad(pad_val=9), Stack(dtype="int64"))([([1, 2, 3], 4), ([5], 6)])
print(ids.tolist(), ids.dtype, label.tolist())
padded, lengths = Pad(axis=0, ret_length=True, pad_right=False, dtype="float32")([[1, 2], np.array([3])])
print(padded.tolist(), padded.dtype, lengths.tolist(), lengths.dtype)
print([a.tolist() for a in Dict({"b": Stack(), "a": Pad()})([{"a": [1], "b": 2}, {"a": [3, 4], "b": 5}])])
vocab = Vocab.build_vocab([["b", "a", "b"]], unk_token="[UNK]", pad_token="[PAD]")
print(vocab.to_indices(["b", "zzz"]), vocab.to_tokens([0, 2]), len(vocab), "a" in vocab)
"""
    assert run(code).splitlines() == [
        "[[1, 2, 3], [5, 9, 9]] int64 [4, 6]",
        "[[1.0, 2.0], [0.0, 3.0]] float32 [2, 1] int32",
        "[[2, 5], [[1, 0], [3, 4]]]",
        "[2, 1] ['[PAD]', 'b'] 4 True",
    ]


def test_a_data_set_is_read_by_a_function_or_from_files(run: Run, home: Path) -> None:
    (home / "a.jsonl").write_text('{"text": "x\u2028y"}\n{"text": "z"}\n', "utf-8")
    code = """
from paddlenlp.datasets import load_dataset, MapDataset, IterDataset
def read(data_files, upper=False):
    for line in open(data_files, encoding="utf-8"):
        yield line[:9]
d = load_dataset(read, data_files="a.jsonl", lazy=False)
print(type(d).__name__, len(d), d.map(len)[0], len(d.filter(lambda line: "z" not in line)))
print([row["text"] for row in load_dataset("json", data_files="a.jsonl", splits="train", lazy=True)])
try:
    load_dataset("clue", "tnews", splits="dev")
except FileNotFoundError as exc:
    print(exc)
"""
    first, second, third = run(code).splitlines()
    assert first == "MapDataset 2 9 2"
    assert second == "['x\\u2028y', 'z']"
    assert "nothing is downloaded" in third and "data_files" in third


def test_the_logger_has_paddlenlps_levels(run: Run) -> None:
    code = """
import sys
from paddlenlp.utils.log import logger
logger.handler.setStream(sys.stdout)
logger.set_level("WARNING"); logger.info("no"); logger.warning("yes"); logger.disable(); logger.error("no")
"""
    assert run(code).endswith("[ WARNING] - yes")


def test_a_tokenizer_of_sentence_pieces_says_what_it_needs(run: Run, home: Path) -> None:
    shutil.copy(home / "bert-base-chinese/vocab.txt", home / "vocab.txt")
    (home / "sentencepiece.bpe.model").write_bytes(b"no model")
    load = "from paddlenlp.transformers import ErnieMTokenizer as E; E.from_pretrained('.')"
    assert "is no SentencePiece model" in run(load, fails=True)
    hidden = f"import sys; sys.modules['sentencepiece'] = None; {load}"
    assert 'pip install "./compat[nlp]"' in run(hidden, fails=True)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("t(7)", "text input must of type `str`"),
        ("t(['a'], ['b', 'c'])", "does not match batch length"),
        ("t([['a', 'b', 'c']])", "a text or a pair of texts, not 3"),
        ("t(['国'] * 2, ['足'] * 2, stride=1, max_seq_len=4)", "leaves no room"),
        ("t('a', padding='longer')", "not a valid PaddingStrategy"),
        ("t.pad({'ids': [1]})", "includes input_ids"),
        ("t(['a', 'b a'], return_tensors='np')", "different lengths"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_with_a_reason(run: Run, call: str, told: str) -> None:
    load = (
        "from paddlenlp.transformers import BertTokenizer as B; t = B.from_pretrained('bert-base-chinese'); "
    )
    last = run(load + call, fails=True).strip().splitlines()[-1]
    assert told in last and last.startswith(("ValueError", "TypeError"))


def test_an_app_of_2022_answers_without_paddlenlp(classifier: ServingModel, home: Path) -> None:
    folder = home / "app"
    shutil.copytree(APPS / "news_2022", folder)
    shutil.move(home / "bert-base-chinese", folder)
    conf = {"client_type": "local_predictor", "model_config": str(classifier.directory), "device_type": 0}
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    conf |= {"thread_num": 1, "fetch_list": ["logits"], "ir_optim": True}
    dag = {"is_thread_op": False, "channel_size": 10}
    config = {
        **ports,
        "worker_num": 1,
        "dag": dag,
        "op": {"bert": {"concurrency": 1, "local_service_conf": conf}},
    }
    (folder / "config.yml").write_text(yaml.safe_dump(config), "utf-8")
    env = {"PYTHONPATH": f"{ROOT}:{COMPAT}"}
    with ServiceProcess(folder, ports, name="bert", folder=folder, env=env) as service:
        answer = service.predict({"0": "国足客场，5℃", "1": "hellos"})
    ids = np.array([[2, 10, 11, 12, 13, 27, 23, 22, 3], [2, 24, 25, 3, 0, 0, 0, 0, 0]])
    feeds = {"input_ids": ids, "token_type_ids": ids * 0, "attention_mask": (ids > 0).astype("int64")}
    logits = create_predictor(classifier, local_conf()).run(feeds)["logits"]
    expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(parse_value(answer["logits"]), expected, rtol=1e-5)


ANSWERS = """
import json, pathlib
from paddlenlp import transformers
from paddlenlp.transformers.xlm.tokenizer import XLMTokenizer
from tests.support.tokenizer_answers import answers, replay_segments, write_vocabularies
write_vocabularies(pathlib.Path())
replay_segments(json.loads(pathlib.Path({path!r}).read_text("utf-8"))["segments"][0])
print(json.dumps(answers(transformers, pathlib.Path())))
"""


def test_tokenizers_answer_as_recorded(run: Run) -> None:
    path = ROOT / "tests" / "fixtures" / "paddlenlp_tokens.json"
    recorded = json.loads(path.read_text("utf-8"))
    del recorded["segments"]
    answered = json.loads(run(ANSWERS.format(path=str(path))))
    for name, answers in recorded.items():
        assert answered[name] == answers, name


METRICS = """
import json, sys
from paddlenlp import metrics
from paddlenlp.metrics import squad
from paddlenlp.metrics.rouge import RougeL
from paddlenlp.utils.log import logger
from tests.support.metric_answers import answers
logger.disable()
arrays = answers(metrics, squad, lambda array: array)
assert not {"paddle", "sklearn"} & set(sys.modules)
import paddle
print(json.dumps([arrays, answers(metrics, squad, paddle.to_tensor)]))
"""


def test_metrics_of_arrays_and_of_tensors_are_as_recorded(run: Run) -> None:
    recorded = json.loads((ROOT / "tests" / "fixtures" / "paddlenlp_metrics.json").read_text("utf-8"))
    arrays, tensors = json.loads(run(METRICS))
    for name, expected in recorded.items():
        assert arrays[name] == tensors[name] == expected, name


def test_new_families_are_saved_and_loaded_by_their_folder(run: Run) -> None:
    code = """
import json, pathlib
from paddlenlp.transformers import AutoTokenizer, LukeTokenizer, MBartTokenizer, T5Tokenizer
from tests.support.tokenizer_answers import write_vocabularies
write_vocabularies(pathlib.Path())
files = ("vocab.json", "entities.json", "merges.txt")
mbart, t5 = MBartTokenizer("pieces.model", src_lang="zh_CN"), T5Tokenizer("pieces.model", extra_ids=2)
for t in LukeTokenizer(*files), mbart, t5:
    t.save_pretrained("saved")
    again = AutoTokenizer.from_pretrained("saved")
    print(type(again).__name__, again("hello b") == t("hello b"), len(again) == len(t))
t5 = T5Tokenizer.from_pretrained("saved")
print(t5.tokenize("hello <extra_id_1> b"), t5("hello</s>")["input_ids"])
"""
    assert run(code).splitlines() == [
        "LukeTokenizer True True",
        "MBartTokenizer True True",
        "T5Tokenizer True True",
        "['▁hello', '<extra_id_1>', '▁b'] [4, 2]",
    ]


@pytest.mark.parametrize(
    ("code", "package"),
    [
        ("T.RoFormerTokenizer('vocab.txt', use_jieba=True)", "jieba"),
        ("T.XLMTokenizer('xlm.json', 'xlm.txt')('a')", "sacremoses"),
        ("T.XLMTokenizer('xlm.json', 'xlm.txt')('a', lang='zh')", "jieba"),
    ],
)
def test_a_tokenizer_names_the_package_that_it_needs(run: Run, code: str, package: str) -> None:
    prepare = """
import pathlib, sys
from paddlenlp import transformers as T
from tests.support.tokenizer_answers import write_vocabularies
write_vocabularies(pathlib.Path())
sys.modules |= {"jieba": None, "sacremoses": None}
"""
    last = run(prepare + code, fails=True).strip().splitlines()[-1]
    assert last.startswith("ImportError") and last.endswith(f"pip install {package}")


@pytest.mark.parametrize(
    "code",
    [
        "from paddlenlp.transformers import PretrainedModel",
        "from paddlenlp.transformers import GPTChineseTokenizer",
        "from paddlenlp.metrics import BLEUForDuReader",
        "import paddlenlp.metrics.dureader",
    ],
)
def test_a_name_that_is_not_here_says_how_the_real_package_is_installed(run: Run, code: str) -> None:
    said = run(code, fails=True).splitlines()[-1]
    assert "is not in Paddlewheel's compat" in said
    command = "python -m pip install paddlenlp --constraint requirements/paddlenlp-constraints.txt"
    assert said.endswith(command)
