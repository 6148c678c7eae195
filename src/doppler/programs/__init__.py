"""Tensor programs before sharding, and the workloads that come with Doppler."""

from doppler.programs.chainmm import chainmm
from doppler.programs.cholesky import cholesky
from doppler.programs.evaluate import evaluate_program, random_inputs
from doppler.programs.ffnn import ffnn, mlp
from doppler.programs.functions import concat, exp, relu, softmax, to_complex, to_real
from doppler.programs.llama import attention, llama_block, llama_layer, transformer
from doppler.programs.moe import moe_layer
from doppler.programs.program import Axis, Op, Program, Read
from doppler.programs.program_builder import ProgramBuilder
from doppler.programs.random_dag import random_dag
from doppler.programs.tensor import Tensor, binary, einsum, reduce, unary

__all__ = [
    "Axis",
    "Op",
    "Program",
    "ProgramBuilder",
    "Read",
    "Tensor",
    "attention",
    "binary",
    "chainmm",
    "cholesky",
    "concat",
    "einsum",
    "evaluate_program",
    "exp",
    "ffnn",
    "llama_block",
    "llama_layer",
    "mlp",
    "moe_layer",
    "random_dag",
    "random_inputs",
    "reduce",
    "relu",
    "softmax",
    "to_complex",
    "to_real",
    "transformer",
    "unary",
]
