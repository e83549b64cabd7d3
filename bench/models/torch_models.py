"""Small PyTorch models with random weights: architectures of torchvision, and a recurrent network.

The functions without `steps` are factories for `convert`, which runs them in the conversion environment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.models.subject import Subject, keep, made_up
from convert.steps.progress import Steps

FAMILY = "PyTorch"
CLASSES, WORDS = 10, 50
_IMAGE = "image:float32[-1,3,64,64]"
_IDS = "input_ids:int64[-1,-1]"


def resnet() -> Any:
    """Return two residual blocks behind a stem; ResNet-18 has eight."""
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, given: int, made: int) -> None:
            super().__init__()
            self.way = nn.Sequential(
                *_convolution(given, made, stride=2), nn.Conv2d(made, made, 3, 1, 1, bias=False),
                nn.BatchNorm2d(made),
            )  # fmt: skip
            self.short = nn.Sequential(nn.Conv2d(given, made, 1, 2, bias=False), nn.BatchNorm2d(made))

        def forward(self, x: Any) -> Any:
            return (self.way(x) + self.short(x)).relu()

    def body() -> Any:
        stem = (*_convolution(3, 16, stride=2), nn.MaxPool2d(3, 2, 1))
        return nn.Sequential(*stem, Block(16, 32), Block(32, 64), *_head(64))

    return _seeded(body)


def mobilenet() -> Any:
    """Return inverted residuals with depthwise convolutions, as in MobileNetV2."""
    from torch import nn

    class Inverted(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            wide = 4 * width
            self.way = nn.Sequential(
                nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
                nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
                nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return x + self.way(x)

    return _seeded(lambda: nn.Sequential(*_convolution(3, 16, stride=2), Inverted(16), *_head(16)))


def vgg() -> Any:
    from torch import nn

    def body() -> Any:
        first, second = _convolution(3, 8), _convolution(8, 16)
        pooled = (*first, nn.MaxPool2d(2), *second, nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        return nn.Sequential(*pooled, nn.Linear(256, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, CLASSES))

    return _seeded(body)


def unet() -> Any:
    """Return a U-Net: down, up, with skip connections, and an output for each pixel."""
    import torch
    from torch import nn

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(*_convolution(3, 8))
            self.below = nn.Sequential(nn.MaxPool2d(2), *_convolution(8, 16))
            self.up = nn.ConvTranspose2d(16, 8, 2, 2)
            self.output = nn.Conv2d(16, 2, 1)

        def forward(self, x: Any) -> Any:
            states = self.down(x)
            return self.output(torch.cat([states, self.up(self.below(states))], 1))

    return _seeded(UNet)


def lstm() -> Any:
    from torch import nn

    class Recurrent(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, 16)
            self.cells = nn.LSTM(16, 12, batch_first=True, bidirectional=True)
            self.output = nn.Linear(24, 3)

        def forward(self, input_ids: Any) -> Any:
            return self.output(self.cells(self.words(input_ids))[0].mean(1))

    return _seeded(Recurrent)


def fourier() -> Any:
    """Return a module with an operator that neither ONNX nor Paddle supports."""
    import torch
    from torch import nn

    class Fourier(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.linear(torch.fft.fft(x).abs())

    return _seeded(Fourier)


def _seeded(build: Callable[[], Any]) -> Any:
    import torch

    torch.manual_seed(1)
    return build()


def _convolution(given: int, made: int, stride: int = 1) -> tuple[Any, ...]:
    from torch import nn

    return nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU()


def _head(width: int) -> tuple[Any, ...]:
    from torch import nn

    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)


def make(steps: Steps, folder: str, factory: str, spec: str) -> str:
    """Keep the answer of a factory's module, and return the factory's name, by which `convert` calls it."""
    import torch

    given = made_up(spec, WORDS)
    with torch.no_grad():
        output = _FACTORIES[factory]().eval()(*map(torch.from_numpy, given.values()))
    keep(folder, given, {"output": output.numpy()})
    return f"{__name__}:{factory}"


_FACTORIES: dict[str, Callable[[], Any]] = {
    factory.__name__: factory for factory in (resnet, mobilenet, vgg, unet, lstm, fourier)
}


def _module(name: str, factory: str, spec: str, *more: str, refused: str = "") -> Subject:
    arguments = {"factory": factory, "spec": spec}
    options = ("--input-spec", spec, *more)
    return Subject(name, FAMILY, f"{__name__}:make", ("torch",), arguments, options, refused=refused)


SUBJECTS = (
    _module("ResNet", "resnet", _IMAGE),
    _module("MobileNetV2", "mobilenet", _IMAGE),
    _module("VGG", "vgg", _IMAGE),
    _module("U-Net", "unet", _IMAGE),
    _module("LSTM, both directions", "lstm", _IDS),
    # Without --engine, PyTorch would serve it, and the environment of the bench has none.
    _module(
        "a Fourier transform",
        "fourier",
        "x:float32[-1,8]",
        "--engine",
        "onnxruntime",
        refused="aten::fft_fft",
    ),
)
