"""The model.py files of the ensemble, as Triton's Python backend runs them, too."""
