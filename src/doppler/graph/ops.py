"""The kinds of operation the paper's graphs are made of, and the kinds of inputs."""

from enum import StrEnum

ONNX_PIECE = "onnx"  # op of kernels that onnxruntime runs


class OpKind(StrEnum):
    """What a vertex computes (App. A.1). A graph may name kinds of its own beside these.

    >>> import doppler as dp
    >>> dp.OpKind("matmul").name
    'MATMUL'
    """

    INPUT = "input"  # an input tensor: given, never assigned
    MATMUL = "matmul"  # matrix multiplication, or any contraction of two tensors
    INPUT_ELEMWISE = "input-elemwise"  # a function of every element of one tensor
    STRAIGHT_ELEMWISE = "straight-elemwise"  # of two tensors of the same shape
    BCAST_ELEMWISE = "bcast-elemwise"  # of two tensors, one broadcast over the other
    MAX_REDUCTION = "max-reduction"
    MIN_REDUCTION = "min-reduction"
    SUM_REDUCTION = "sum-reduction"
    PRODUCT_REDUCTION = "product-reduction"
    FORMATION = "formation"  # aggregates the partial results of a meta-op into one tensor
    COMPLEXER = "complexer"  # conversion between real and complex
    FILL = "fill"  # a tensor of one scalar, or of one below or above the diagonal
    SQUEEZER = "squeezer"  # adds or removes singleton dimensions
    SELECT = "select"  # a subset or concatenation of tensors


class InputKind(StrEnum):
    """Where the tensors of an input are, and what memory they take.

    >>> InputKind("resident").name
    'RESIDENT'
    """

    EVERYWHERE = "everywhere"  # on every device at no cost
    RESIDENT = "resident"  # weights: on each device that reads them before the clock starts
    STREAMED = "streamed"  # data: comes over the host's link, in memory until its last use
    LOADED = "loaded"  # weights at a cold start: come over the host's link, and stay
