"""Model files that PyTorch writes: TorchScript, programs of torch.export, and files that are neither."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

VOCABULARY, WIDTH, LENGTH = 500, 32, 256


class Encoder(nn.Module):
    """An encoder in the shape of XLM-R, which makes its positions and moves tensors to a device itself."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(vocabulary, WIDTH, padding_idx=1)
        self.positions = nn.Embedding(LENGTH + 2, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(WIDTH, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        device = torch.device("cpu")
        mask = attention_mask.to(device)
        positions = torch.cumsum(mask, 1) * mask + torch.zeros(1, dtype=torch.int64, device=device)
        embedded = self.words(input_ids.to(device)) + self.positions(positions)
        states = self.layers(embedded, src_key_padding_mask=mask == 0)
        return self.classifier(states[:, 0]).softmax(1)[0]


class Sum(nn.Module):
    """Adds two tensors; its results have the form that the test names."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x + y, "difference": x - y}


class Pair(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + y, x - y


class Texts(nn.Module):
    """Texts in and out, as Triton has them: lists of str."""

    def forward(self, texts: list[str], x: torch.Tensor) -> list[str]:
        return [text + "!" for text in texts]


class Writer(nn.Module):
    """Writes to its input, and returns it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 1
        return x


class Row(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Flat(Row):
    """Reads the size of its input: in a program of torch.export this is a symbol."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).reshape(x.shape[0] * 3).reshape(x.shape[0], 3)


class Words(nn.Module):
    """A classifier of token ids that a mask hides; its result is a dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 8)
        self.linear = nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        mask = attention_mask.to(torch.float32).unsqueeze(-1)
        return {"logits": self.linear((self.words(input_ids) * mask).sum(1) / mask.sum(1))}


class Fourier(nn.Module):
    """Has an operator that ONNX can't have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).real


def scripted(module: nn.Module, path: Path) -> Path:
    return _saved(lambda: torch.jit.script(module.eval()), path)


def traced(module: nn.Module, inputs: tuple[Any, ...], path: Path) -> Path:
    return _saved(lambda: torch.jit.trace(module.eval(), inputs, check_trace=False, strict=False), path)


def _saved(build: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.jit.save(build(), str(path))
    return path


def exported(module: nn.Module, inputs: tuple[Any, ...], path: Path, **shapes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module.eval(), inputs, **shapes), path)
    return path


def edited(path: Path, old: str, new: str) -> Path:
    """Replace a text in the code or the graph of an archive, in place: PyTorch for a CPU traces no GPU."""
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    count = 0
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if name.endswith((".py", ".json")):
                count += content.count(old.encode())
                content = content.replace(old.encode(), new.encode())
            archive.writestr(name, content)
    assert count, f"{path} does not hold {old}"
    return path


def encoder_inputs(rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(2, VOCABULARY, (rows, LENGTH), generator=generator, dtype=torch.int32)
    mask = torch.ones((rows, LENGTH), dtype=torch.int32)
    mask[:, 40:] = 0
    return ids, mask


def traced_on_a_gpu(path: Path, vocabulary: int = VOCABULARY) -> Encoder:
    """Write the encoder as one that was traced with `.cuda()` inside of forward; return the original."""
    module = Encoder(vocabulary)
    traced(module, encoder_inputs(), path)
    edited(path, 'torch.device("cpu")', 'torch.device("cuda:0")')
    return module
