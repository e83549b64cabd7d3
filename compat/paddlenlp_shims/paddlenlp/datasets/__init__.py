"""`paddlenlp.datasets`: data sets of local files; nothing is downloaded."""

from .dataset import IterDataset, MapDataset, load_dataset

__all__ = ["IterDataset", "MapDataset", "load_dataset"]
