"""Feed-forward networks (App. D.2)."""

from doppler.errors import ConfigError
from doppler.programs.functions import relu, softmax
from doppler.programs.program import Program
from doppler.programs.program_builder import ProgramBuilder


def ffnn(
    *,
    batch: int = 1 << 15,
    features: int = 1 << 5,
    hidden: int = 1 << 16,
    classes: int = 1 << 5,
    bias: bool = False,
    dtype: str = "float16",
) -> Program:
    """`softmax(relu(X @ W1 + b1) @ W2 + b2)` (App. D.2); the authors' graph has no biases."""
    b = ProgramBuilder("ffnn", dtype=dtype)
    x, w1 = b.input("X", (batch, features)), b.input("W1", (features, hidden), weight=True)
    h = (x @ w1).named("xw1")
    if bias:
        h = (h + b.input("b1", (hidden,), weight=True)).named("xw1.bias")
    h = relu(h)
    y = (h @ b.input("W2", (hidden, classes), weight=True)).named("hw2")
    if bias:
        y = (y + b.input("b2", (classes,), weight=True)).named("hw2.bias")
    return b.build(softmax(y))


def mlp(
    *,
    batch: int = 8192,
    width: int = 8192,
    layers: int = 4,
    dtype: str = "float16",
) -> Program:
    """`layers` dense layers of one width with relu between them."""
    if layers < 1:
        raise ConfigError(f"layers is {layers}, must be at least 1")
    b = ProgramBuilder("mlp", dtype=dtype)
    x = b.input("x", (batch, width))
    for i in range(layers):
        x = (x @ b.input(f"w{i}", (width, width), weight=True)).named(f"dense{i}")
        x = (x + b.input(f"b{i}", (width,), weight=True)).named(f"bias{i}")
        if i < layers - 1:
            x = relu(x, name=f"relu{i}")
    return b.build(x)
