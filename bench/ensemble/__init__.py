"""An ensemble of a tokenizer, an ONNX model and a postprocess, in turns with other ways to serve them."""
