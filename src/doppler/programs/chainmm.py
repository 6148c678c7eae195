"""Chain of matrix products (App. D.1)."""

from doppler.programs.program import Program
from doppler.programs.program_builder import ProgramBuilder


def chainmm(*, size: int = 10_000, dtype: str = "float16") -> Program:
    """`A @ B + C @ (D @ E)` of square matrices (App. D.1)."""
    builder = ProgramBuilder("chainmm", dtype=dtype)
    a, b, c, d, e = (builder.input(name, (size, size), weight=True) for name in "ABCDE")
    de = (d @ e).named("DE")
    cde = (c @ de).named("CDE")
    ab = (a @ b).named("AB")
    return builder.build((cde + ab).named("add"))
