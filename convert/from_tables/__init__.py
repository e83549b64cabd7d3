"""Models of tables to ONNX: scikit-learn, LightGBM, XGBoost."""
