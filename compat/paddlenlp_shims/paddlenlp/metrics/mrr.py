"""Mean reciprocal rank (MRR) of labelled embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np


class MRR:
    """Computes the mean reciprocal rank of the nearest embedding with the same label.

    distance: name of a distance metric of scikit-learn.
    """

    def __init__(self, distance: str = "cosine") -> None:
        self.distance = distance

    def reset_distance(self, distance: str) -> None:
        """Set the distance metric."""
        self.distance = distance

    def compute_matrix_mrr(self, labels: Any, embeddings: Any) -> Any:
        """Return the mean reciprocal rank over all embeddings, which are rows, by their labels.

        Raises ValueError if the number of labels differs.
        """
        from sklearn.metrics import pairwise_distances

        if labels.shape[0] != embeddings.shape[0]:
            raise ValueError("label and embedding matrix must have same size at dim=0 !")
        ranks = []
        for label, embedding in zip(labels, embeddings, strict=True):
            distances = pairwise_distances(embedding.reshape(1, -1), embeddings, metric=self.distance)
            nearest = np.argsort(distances.reshape(-1))[1:]
            same = (labels[nearest] == label).nonzero()[0]
            ranks.append(1.0 / (1 + same[0]) if same.size else 0.0)
        return np.mean(ranks)
