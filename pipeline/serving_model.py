"""Loading of a model folder, for user scripts: see `pipeline.models.serving_model`."""

from pipeline.models.serving_model import ServingModel, Variable, load_serving_model

__all__ = ["ServingModel", "Variable", "load_serving_model"]
