"""`paddlewheel convert serving`: makes a serving model of an exported Paddle or ONNX model.

A serving model is the folder that a service loads: graph, weights, and a description of inputs and outputs.
"""
