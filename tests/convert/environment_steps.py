"""Steps that tell what the conversion environment holds."""

from __future__ import annotations

import importlib
import itertools
import sys
from importlib import metadata
from typing import Any

from convert.programs.paddlenlp_import import import_models
from convert.steps.progress import Steps


def installed(steps: Steps) -> dict[str, Any]:
    packages = [(d.metadata["Name"], d.version) for d in metadata.distributions()]
    return {"prefix": sys.prefix, "packages": packages}


def requirements(steps: Steps) -> list[tuple[str, str]]:
    """What each package there says that it requires, extras left out."""
    from packaging.requirements import Requirement

    return [
        (package.metadata["Name"], each.name)
        for package in metadata.distributions()
        for each in map(Requirement, package.requires or ())
        if each.marker is None or each.marker.evaluate({"extra": ""})
    ]


def imported(steps: Steps, module: str) -> str:
    return importlib.import_module(module).__name__


def paddlenlp_with(steps: Steps) -> dict[str, Any]:
    """What PaddleNLP needs, by metadata, and what it does on this NumPy."""
    import numpy as np
    from packaging.requirements import Requirement
    from paddlenlp.data import Pad
    from paddlenlp.transformers import BertTokenizer

    names, found = ["paddlenlp"], {"paddlenlp"}
    while names:
        for each in map(Requirement, metadata.requires(names.pop()) or ()):
            if each.name not in found and (each.marker is None or each.marker.evaluate({"extra": ""})):
                names.append(each.name)
                found.add(each.name)
    padded = Pad(pad_val=0)([[1, 2, 3], [4]])
    return {
        "needs": sorted(found),
        "numpy": np.__version__,
        "padded": padded.tolist(),
        "tokenizer": BertTokenizer.__module__,
    }


def paddlenlp_checkpoint(
    steps: Steps, family: str, head: str, sizes: dict[str, Any], folder: str, feeds: str
) -> None:
    """Save a small PaddleNLP model to `folder`, and its logits for the arrays of `feeds` as logits.npy."""
    import numpy as np
    import paddle

    transformers = import_models()
    paddle.seed(3)
    config = getattr(transformers, f"{family}Config")(**sizes)
    model = getattr(transformers, f"{family}For{head}Classification")(config)
    model.eval()
    for weight in model.parameters():  # as far from their initial values as trained ones are
        weight.set_value(weight + 0.1 * paddle.randn(weight.shape))
    model.save_pretrained(folder)
    arrays = dict(np.load(feeds))
    logits = model(**{name: paddle.to_tensor(array) for name, array in arrays.items()})
    np.save(f"{folder}/logits.npy", logits.numpy())


def torch_onnx(steps: Steps, family: str, head: str, opset: int, file: str) -> None:
    """Export a small encoder of transformers to `file`, as PyTorch's own exporter writes it."""
    import torch
    import transformers

    torch.manual_seed(5)
    sizes = {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "num_labels": 3,
        "pad_token_id": 1,
    }
    config = getattr(transformers, f"{family}Config")(**sizes, attn_implementation="eager")
    model = getattr(transformers, f"{family}For{head}Classification")(config).eval()
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn(weight.shape)
    names = ["input_ids", "attention_mask"]
    ids = torch.randint(2, 100, (2, 9))
    torch.onnx.export(
        model,
        (ids, torch.ones_like(ids)),
        file,
        input_names=names,
        output_names=["logits"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in (*names, "logits")},
        opset_version=opset,
        dynamo=False,
    )


def onnx_operators(steps: Steps, nodes: list[list[Any]], opset: int, file: str) -> None:
    """Write a model of float32 x [batch, 4] to float32 y; a node is [operator, inputs, output, attributes].

    "domain" is the node's; the constants `one`, `axis`, `axis_0d`, `table` (3 x 2) and `kernel` (1 x 1 x 1)
    stand ready.
    """
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    constants = {
        "one": np.ones(4, np.float32),
        "axis": np.array([1]),
        "axis_0d": np.array(1),
        "table": np.arange(6, dtype=np.float32).reshape(3, 2),
        "kernel": np.full((1, 1, 1), 0.5, np.float32),
    }
    made = [
        helper.make_node(operator, inputs, [output], **attributes)
        for operator, inputs, output, attributes in nodes
    ]
    for node in made:
        for attribute in node.attribute:
            if attribute.name == "fill":  # int64, which JSON can't tell
                tensor = helper.make_tensor("v", TensorProto.INT64, [1], [attribute.i])
                attribute.CopyFrom(helper.make_attribute("value", tensor))
    graph = helper.make_graph(
        made,
        "operators",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    if all(node.domain == "ai.onnx.ml" for node in made):  # then the converters of tables import no other
        domains = [helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=8), file)


def torch_of_fixed_batch(steps: Steps, kind: str, rows: int, file: str) -> None:
    """Export a small model of this kind to `file`, for so many rows and no other number."""
    import torch

    torch.manual_seed(6)
    shapes = {"cnn": (3, 32, 32), "vit": (3, 32, 32), "bert": (9,), "lstm": (7, 6), "mixing": (4,)}
    given = torch.randn(rows, *shapes[kind])
    if kind == "bert":
        given = torch.randint(1, 100, given.shape)
    torch.onnx.export(
        _small_model(kind).eval(),
        (given,),
        file,
        input_names=["x"],
        output_names=["y"],
        opset_version=17,
        dynamo=False,
    )


def _small_model(kind: str) -> Any:
    import torch
    import transformers
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.output = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.output(self.cells(x)[0][:, -1])

    class Mixing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean(0, keepdim=True)

    class Logits(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).logits

    if kind in ("lstm", "mixing"):
        return Recurrent() if kind == "lstm" else Mixing()
    if kind == "cnn":
        convolution = [nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU()]
        return nn.Sequential(*convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes = {**sizes, "num_labels": 3, "attn_implementation": "eager"}
    if kind == "vit":
        seen = transformers.ViTConfig(image_size=32, patch_size=8, **sizes)
        return Logits(transformers.ViTForImageClassification(seen))
    read = transformers.BertConfig(vocab_size=100, **sizes)
    return Logits(transformers.BertForSequenceClassification(read))


def imported_for_tables(steps: Steps) -> list[str]:
    """Return the packages that the conversion of a table imports, before it loads the model."""
    importlib.import_module("convert.from_tables.table_steps")
    return sorted({name.partition(".")[0] for name in sys.modules})


def imported_for_paddlenlp(steps: Steps) -> list[str]:
    """Return the packages and the parts of PaddleNLP that its models import."""
    models = import_models()
    assert models.ErnieForSequenceClassification is not None
    return sorted({".".join(name.split(".")[:2]) for name in sys.modules})


def table_model(steps: Steps, kind: str, file: str) -> dict[str, Any]:
    """Train a small model of this kind and save it to `file`.

    Returns rows by column, and what it says of them: probabilities and labels, or values.
    """
    import numpy as np
    import pandas

    random = np.random.default_rng(8)
    flowers = pandas.DataFrame(random.normal(0, 2, (120, 3)), columns=["length", "width", "weight"])
    colour = np.array(["red", "white", "blue"])[(flowers["length"] > 0) + (flowers["weight"] > 1).astype(int)]
    people = pandas.DataFrame(
        {
            "age": random.uniform(18, 80, 120),
            "hours": random.uniform(0, 60, 120),
            "job": random.choice(["clerk", "driver", "nurse"], 120),
        }
    )
    buys = np.where((people["age"] > 40) & (people["job"] != "nurse"), "yes", "no")
    if "named as answers" in kind:
        people.columns = pandas.Index(["probabilities", "prediction", "label"])
    if "with blanks" in kind:
        people.columns = pandas.Index(["age (years)", "hours a week", "job"])
    if "categories" in kind:
        people = people.astype({"job": "category"}).assign(city=pandas.Categorical(people.index % 3 * 10))
        buys = (buys == "yes").astype(int)
    if "with gaps" in kind:
        people.loc[::3, "job"] = None
        people.loc[::4, "age"] = np.nan
        buys = np.where(people["job"].isna(), "yes", buys)
    table = people if kind.startswith("people") else flowers
    target = buys if kind.startswith("people") else colour
    target = table.iloc[:, 0] * 2 if "regression" in kind else target
    model = _table_model(kind, table, target)
    _save_table_model(model, file)
    rows = table.head(6).copy()
    if "categories" in kind:
        rows.loc[5, "job"] = None
    columns = {name: rows[name].astype(object).where(rows[name].notna(), None) for name in rows}
    told: dict[str, Any] = {"rows": {name: values.tolist() for name, values in columns.items()}}
    if "regression" in kind:
        return {**told, "values": np.ravel(model.predict(rows)).tolist()}
    labels = [str(label) for label in model.predict(rows)]
    scores = model.predict_proba(rows).max(1).tolist() if hasattr(model, "predict_proba") else None
    return {**told, "labels": labels, "scores": scores}


def _table_model(kind: str, table: Any, target: Any) -> Any:
    import lightgbm
    import numpy as np
    import xgboost
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.svm import SVC, LinearSVC

    def encoded(model: Any) -> Any:
        *others, words = table.columns
        texts, numbers = OneHotEncoder(handle_unknown="ignore"), StandardScaler()
        if "with gaps" in kind:
            numbers = make_pipeline(SimpleImputer(), numbers)
        if "imputed" in kind:
            texts = make_pipeline(SimpleImputer(strategy="most_frequent"), texts)
        return make_pipeline(make_column_transformer((texts, [words]), (numbers, others)), model)

    numbers = np.unique(target, return_inverse=True)[1] if "xgboost" in kind else target
    makers = {
        "forest": lambda: RandomForestClassifier(10, random_state=0),
        "histogram": lambda: HistGradientBoostingClassifier(max_iter=10),
        "vectors": LinearSVC,
        "kernels": SVC,
        "regression": Ridge,
        "people": lambda: encoded(LogisticRegression()),
        "people, columns named as answers": lambda: encoded(LogisticRegression()),
        "people, regression, columns named as answers": lambda: encoded(Ridge()),
        "people, columns with blanks": lambda: encoded(LogisticRegression()),
        "people with gaps": lambda: encoded(LogisticRegression()),
        "people with gaps, imputed": lambda: encoded(LogisticRegression()),
        "people of lightgbm": lambda: encoded(lightgbm.LGBMClassifier(n_estimators=5, verbose=-1)),
        "people in categories of lightgbm": lambda: lightgbm.LGBMClassifier(
            n_estimators=5, verbose=-1, min_data_per_group=5, cat_smooth=1
        ),
        "people in categories of xgboost": lambda: xgboost.XGBClassifier(
            n_estimators=5, enable_categorical=True
        ),
        "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=5, verbose=-1),
        "xgboost": lambda: xgboost.XGBClassifier(n_estimators=5),
        "xgboost regression": lambda: xgboost.XGBRegressor(n_estimators=5),
    }
    values = target if "regression" in kind else numbers
    return makers[kind]().fit(table, values)


def _save_table_model(model: Any, file: str) -> None:
    import joblib

    if file.endswith(".txt"):
        model.booster_.save_model(file)
    elif file.endswith((".json", ".ubj")):
        model.save_model(file)
    else:
        joblib.dump(model, file)


def tokenizer_ids(
    steps: Steps, library: str, name: str, file: str, texts: list[str]
) -> dict[str, list[list[int]]]:
    """The ids of each text, and of it with the next one as a pair, by a tokenizer of transformers or
    PaddleNLP."""
    module = importlib.import_module(library) if library == "transformers" else import_models()
    tokenizer = getattr(module, name)(file)

    def ids(*given: str) -> list[int]:
        return list(tokenizer(*given)["input_ids"])

    return {
        "alone": [ids(text) for text in texts],
        "paired": [ids(*pair) for pair in itertools.pairwise(texts)],
    }
