"""A serving model on disk, under the name that apps import it by: see `pipeline.models.serving_model`."""

from pipeline.models.serving_model import ServingModel, Variable, load_serving_model

__all__ = ["ServingModel", "Variable", "load_serving_model"]
