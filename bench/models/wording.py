"""Texts of the tables in each language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LANGUAGES = {"en": "", "zh": "_zh"}  # suffixes of page names


class Words(NamedTuple):
    """Texts in one language; braces are filled in. families, names, steps: translations of single words."""

    summary: str
    served: str
    refused: str
    columns: tuple[str, ...]
    refused_columns: tuple[str, ...]
    yes: str
    no: str
    families: Mapping[str, str]
    names: Mapping[str, str]
    steps: Mapping[str, str]


_ENGLISH = Words(
    summary="{0} models of {1} families; {2} are served, and of all {3} end as they should. {4};",
    served="Served",
    refused="Refused",
    columns=("Family", "Model", "Route", "Converts in s", "Endpoints", "Largest difference"),
    refused_columns=("Family", "Model", "What is said", "Rightly"),
    yes="yes",
    no="**no**",
    families={},
    names={},
    steps={},
)
_CHINESE = Words(
    summary="{1} 个系列的 {0} 个模型；{2} 个得以服务，{3} 个的结果如其所应。{4}；",
    served="得以服务的",
    refused="被拒绝的",
    columns=("系列", "模型", "路线", "转换用时 s", "入口", "最大差异"),
    refused_columns=("系列", "模型", "给出的说明", "是否应当"),
    yes="是",
    no="**否**",
    families={"Paddle, vision": "Paddle，视觉", "Paddle, text": "Paddle，文本"},
    names={
        "GRU, both directions": "GRU，双向",
        "LSTM, both directions": "LSTM，双向",
        "BERT, texts": "BERT，文本",
        "BERT, tokens": "BERT，词元",
        "ERNIE, tokens": "ERNIE，词元",
        "RoBERTa, texts": "RoBERTa，文本",
        "DistilBERT, texts": "DistilBERT，文本",
        "ELECTRA, texts": "ELECTRA，文本",
        "DeBERTa-v3, texts": "DeBERTa-v3，文本",
        "XLM-R, texts": "XLM-R，文本",
        "MiniLM, embeddings": "MiniLM，向量",
        "ALBERT, texts": "ALBERT，文本",
        "GPT-2, texts": "GPT-2，文本",
        "GPT-2, next token": "GPT-2，下一个词元",
        "ViT, images": "ViT，图像",
        "a Fourier transform": "傅里叶变换",
        "logistic regression, texts among the columns": "逻辑回归，列中有文本",
        "random forest": "随机森林",
        "gradient boosting by histograms": "直方图梯度提升",
        "multilayer perceptron": "多层感知机",
        "support vectors, labels alone": "支持向量机，只有标签",
        "nearest neighbours": "最近邻",
        "ridge regression": "岭回归",
        "a pickle without --trust": "没有 --trust 的 pickle",
        "estimator, names of classes": "估计器，类别有名称",
        "in a pipeline, texts among the columns": "在流水线中，列中有文本",
        "classes, .txt": "分类，.txt",
        "regression, .txt": "回归，.txt",
        "classes, .json": "分类，.json",
        "regression, .ubj": "回归，.ubj",
        "one row and a scalar, no other number": "固定一行，外加一个标量",
        "four images, no other number": "固定四张图像",
        "four images, with --rebatch": "四张图像，带 --rebatch",
        "images of one size": "同一尺寸的图像",
        "images of any size": "任意尺寸的图像",
        "texts of any length": "任意长度的文本",
        "tokens of any length": "任意长度的词元",
        "a series of any length": "任意长度的序列",
        "a state that goes along": "带状态",
        "strings": "字符串",
        "strings beside numbers": "字符串与数字",
        "an image and a text": "图像与文本",
        "label and probabilities": "标签与概率",
        "opset 20, Gelu and LayerNormalization": "opset 20，Gelu 与 LayerNormalization",
        "a sequence of tensors as output": "输出为张量序列",
        "a sequence of tensors as input": "输入为张量序列",
    },
    steps={
        "dynamic to static": "动转静",
        "weights into PaddleNLP's model": "权重放入 PaddleNLP 的模型",
        "PyTorch to ONNX": "PyTorch 转 ONNX",
        "ONNX to Paddle": "ONNX 转 Paddle",
        "Paddle to ONNX": "Paddle 转 ONNX",
        "table to ONNX": "表格转 ONNX",
        "serving model": "服务模型",
    },
)
_LANGUAGES = {"en": _ENGLISH, "zh": _CHINESE}


def words_in(language: str) -> Words:
    return _LANGUAGES[language]
