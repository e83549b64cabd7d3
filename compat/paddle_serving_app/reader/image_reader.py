"""Paddle Serving's module `image_reader`: the image transforms under their original import path."""

from paddle_serving_app.reader.detection_boxes import BlazeFacePostprocess, RCNNPostprocess
from paddle_serving_app.reader.detection_transforms import (
    DetectionBGR2RGB,
    DetectionDiv,
    DetectionFile2Image,
    DetectionNormalize,
    DetectionPadStride,
    DetectionResize,
    DetectionSequential,
    DetectionTranspose,
)
from paddle_serving_app.reader.image_sources import Base64ToImage, File2Image, String2Image, URL2Image
from paddle_serving_app.reader.segmentation import SegPostprocess
from paddle_serving_app.reader.text_boxes import (
    DBPostProcess,
    FilterBoxes,
    GetRotateCropImage,
    SortedBoxes,
)
from paddle_serving_app.reader.transforms import (
    BGR2RGB,
    RGB2BGR,
    CenterCrop,
    Div,
    ImageReader,
    Lambda,
    Normalize,
    PadStride,
    Resize,
    ResizeByFactor,
    Sequential,
    Transpose,
)

__all__ = [
    "BGR2RGB",
    "RGB2BGR",
    "Base64ToImage",
    "BlazeFacePostprocess",
    "CenterCrop",
    "DBPostProcess",
    "DetectionBGR2RGB",
    "DetectionDiv",
    "DetectionFile2Image",
    "DetectionNormalize",
    "DetectionPadStride",
    "DetectionResize",
    "DetectionSequential",
    "DetectionTranspose",
    "Div",
    "File2Image",
    "FilterBoxes",
    "GetRotateCropImage",
    "ImageReader",
    "Lambda",
    "Normalize",
    "PadStride",
    "RCNNPostprocess",
    "Resize",
    "ResizeByFactor",
    "SegPostprocess",
    "Sequential",
    "SortedBoxes",
    "String2Image",
    "Transpose",
    "URL2Image",
]
