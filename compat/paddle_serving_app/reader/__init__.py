"""Paddle Serving's preprocessing: `from paddle_serving_app.reader import Sequential, Resize, ...`."""

from paddle_serving_app.reader import image_reader
from paddle_serving_app.reader.chinese_bert_reader import ChineseBertReader
from paddle_serving_app.reader.image_reader import *  # noqa: F403
from paddle_serving_app.reader.imdb_reader import IMDBDataset
from paddle_serving_app.reader.lac_reader import LACReader
from paddle_serving_app.reader.ocr_reader import OCRReader
from paddle_serving_app.reader.pptsn_reader import (
    Image2Array,
    Normalization,
    Sampler,
    Scale,
    TenCrop,
    VideoDecoder,
)
from paddle_serving_app.reader.senta_reader import SentaReader

__all__ = [
    "ChineseBertReader",
    "IMDBDataset",
    "Image2Array",
    "LACReader",
    "Normalization",
    "OCRReader",
    "Sampler",
    "Scale",
    "SentaReader",
    "TenCrop",
    "VideoDecoder",
    *image_reader.__all__,
]
