"""ONNX models in: files, types, constants, costs, and pieces that onnxruntime runs."""
