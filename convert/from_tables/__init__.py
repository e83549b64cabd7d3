"""Converts scikit-learn, LightGBM and XGBoost models of tables to ONNX."""
