"""Source of the Python models in exported Triton repositories, one module per model.

`standalone.py` bundles each module with the project code that it imports into a model.py.
"""
