"""`from paddle_serving_app.reader import Sequential, Resize, ...`: the transforms apps read inputs with."""

from paddle_serving_app.reader.image import (
    BGR2RGB,
    RGB2BGR,
    Base64ToImage,
    CenterCrop,
    Div,
    File2Image,
    Normalize,
    Resize,
    Sequential,
    Transpose,
    URL2Image,
)
from paddle_serving_app.reader.imdb import IMDBDataset

__all__ = [
    "BGR2RGB",
    "RGB2BGR",
    "Base64ToImage",
    "CenterCrop",
    "Div",
    "File2Image",
    "IMDBDataset",
    "Normalize",
    "Resize",
    "Sequential",
    "Transpose",
    "URL2Image",
]
