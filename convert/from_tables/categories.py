"""Categorical columns of LightGBM and XGBoost models: their categories, and ONNX nodes to encode them.

Both libraries train on the codes of pandas categories, and store the categories in the model.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.errors import ConversionError

ENCODED_OPSET = "ai.onnx.ml", 3


class Categories(NamedTuple):
    """The categories of a table's column.

    The code of a category, on which models are trained, is its index.
    """

    values: Sequence[str] | Sequence[int]
    accepts_unknown: bool = False  # whether the library treats an unknown category as missing
    encoded: bool = True  # whether the library maps categories to codes; else clients send codes


def find_categories(model: Any, names: Sequence[str]) -> dict[str, Categories]:
    """Return the categorical columns of a LightGBM or XGBoost model, by the column names `names`.

    Empty for other libraries. Raises ConversionError for categories that can't be encoded.
    """
    library = type(model).__module__.partition(".")[0]
    if library == "lightgbm":
        return _of_lightgbm(getattr(model, "booster_", model), names)
    if library == "xgboost":
        return _of_xgboost(model.get_booster() if hasattr(model, "get_booster") else model, names)
    return {}


def _of_lightgbm(booster: Any, names: Sequence[str]) -> dict[str, Categories]:
    lists = booster.pandas_categorical or []
    # A trained booster and a loaded booster have different names for the indices.
    params = [booster.params.get(key) for key in ("categorical_column", "categorical_feature")]
    indices = next(filter(None, map(_integers, params)), [])
    if not lists:
        infos = booster.dump_model()["feature_infos"]
        max_codes = {at: int(infos.get(booster.feature_name()[at], {}).get("max_value", 0)) for at in indices}
        return {names[at]: Categories(range(max_codes[at] + 1), encoded=False) for at in indices}
    if len(lists) != len(indices):
        raise ConversionError(
            f"LightGBM's model has {len(indices)} categorical columns, and categories for {len(lists)}: make "
            "all of them pandas categories before the training"
        )
    return {
        names[at]: Categories(_check_categories(names[at], values), accepts_unknown=True)
        for at, values in zip(indices, lists, strict=True)
    }


def _integers(value: Any) -> list[int]:
    return sorted({int(number) for number in re.findall(r"\d+", str(value))})


def _of_xgboost(booster: Any, names: Sequence[str]) -> dict[str, Categories]:
    indices = [at for at, kind in enumerate(booster.feature_types or ()) if kind == "c"]
    if not indices:
        return {}
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    trees = learner["gradient_booster"]
    trees = trees.get("model") or trees["gbtree"]["model"]
    stored = (trees.get("cats") or {}).get("enc") or []
    if not stored:  # XGBoost stores them from 3.1 on
        return {names[at]: Categories(range(_count_codes(trees, at)), encoded=False) for at in indices}
    return {names[at]: Categories(_check_categories(names[at], _decode(stored[at]))) for at in indices}


def _decode(encoding: Mapping[str, Any]) -> list[Any]:
    """Return a column's categories in XGBoost's JSON: numbers, or texts stored one after the other."""
    offsets, values = encoding.get("offsets"), encoding["values"]
    if offsets is None:
        return list(values)
    text = bytes(value & 0xFF for value in values)
    return [text[start:end].decode() for start, end in itertools.pairwise(offsets)]


def _count_codes(trees: Mapping[str, Any], feature: int) -> int:
    """Return the number of a column's category codes, according to the trees' splits."""
    max_code = -1
    for tree in trees["trees"]:
        spans = zip(
            tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True
        )
        for node, start, size in spans:
            if tree["split_indices"][node] == feature:
                max_code = max([max_code, *tree["categories"][start : start + size]])
    return max_code + 2  # one code that no split names


def _check_categories(name: str, values: Iterable[Any]) -> list[Any]:
    categories = list(values)
    kinds = set(map(type, categories))
    if not categories or kinds not in ({str}, {int}):
        raise ConversionError(
            f"column {name!r} has categories other than texts or integers ({categories[:3]}); convert them "
            "to texts before the training: .astype(str).astype('category')"
        )
    return categories


def encode_categories(
    onnx_model: Any, feed: str, dtypes: Mapping[str, str], categories: Mapping[str, Categories]
) -> None:
    """Add nodes that encode categories to an ONNX model, with an input for each column.

    The new inputs, of shape [N, 1], replace the input `feed`, which takes codes. dtypes: number, integer or
    text, by column. Unknown categories are encoded as NaN.
    """
    from onnx import TensorProto, helper

    types = {"number": TensorProto.FLOAT, "integer": TensorProto.INT64, "text": TensorProto.STRING}
    graph = onnx_model.graph
    nodes, codes = [], []
    for at, (name, dtype) in enumerate(dtypes.items()):
        codes.append(f"code_{at}")
        if name not in categories:
            nodes.append(helper.make_node("Cast", [name], [codes[-1]], to=TensorProto.FLOAT))
            continue
        values = list(categories[name].values)
        keys = {"keys_strings": values} if dtype == "text" else {"keys_int64s": values}
        floats = [float(code) for code in range(len(values))]
        encoding = {**keys, "values_floats": floats, "default_float": float("nan")}
        nodes.append(
            helper.make_node("LabelEncoder", [name], [codes[-1]], domain=ENCODED_OPSET[0], **encoding)
        )
    nodes += [helper.make_node("Concat", codes, [feed], axis=1), *graph.node]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.input.extend(
        helper.make_tensor_value_info(name, types[dtype], [None, 1]) for name, dtype in dtypes.items()
    )
    imported = {opset.domain: opset for opset in onnx_model.opset_import}
    domain, version = ENCODED_OPSET
    if domain not in imported:
        onnx_model.opset_import.append(helper.make_opsetid(domain, version))
    imported_version = imported.get(domain)
    if imported_version is not None and imported_version.version < version:
        imported_version.version = version
