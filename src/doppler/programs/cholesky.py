"""Tiled Cholesky factorisation, a classic of task runtimes."""

from doppler.errors import ConfigError
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Graph, Kernel
from doppler.graph.ops import OpKind

ITEM_BYTES = {"float32": 4, "float64": 8}
FLOPS = {"potrf": 1 / 3, "trsm": 1.0, "syrk": 1.0, "gemm": 2.0}  # per tile³


def cholesky(*, size: int = 16384, parts: int = 8, dtype: str = "float32") -> Graph:
    """The lower factor of a positive definite matrix, in `parts` × `parts` tiles.

    Right-looking: factor a diagonal tile (potrf), solve the tiles below it (trsm), update the
    rest (syrk on the diagonal, gemm elsewhere). Already a graph of tasks, so nothing is sharded.
    """
    if parts < 1 or size < 1 or size % parts:
        raise ConfigError(f"size {size} does not divide into {parts} tiles")
    if dtype not in ITEM_BYTES:
        raise ConfigError(f"dtype is {dtype}, must be {' or '.join(ITEM_BYTES)}")
    tiling = _Tiling(size // parts, dtype)
    tile = {
        (i, j): tiling.task("input", (i, j), (), "A") for i in range(parts) for j in range(i + 1)
    }
    for k in range(parts):
        tile[k, k] = tiling.task("potrf", (k, k), (tile[k, k],), f"potrf{k}", result=True)
        for i in range(k + 1, parts):
            reads = (tile[i, k], tile[k, k])
            tile[i, k] = tiling.task("trsm", (i, k), reads, f"trsm{k}", result=True)
        for i in range(k + 1, parts):
            tile[i, i] = tiling.task("syrk", (i, i), (tile[i, i], tile[i, k]), f"update{k}", step=k)
            for j in range(k + 1, i):
                three = (tile[i, j], tile[i, k], tile[j, k])
                tile[i, j] = tiling.task("gemm", (i, j), three, f"update{k}", step=k)
    return tiling.builder.build()


class _Tiling:
    """Adds tasks on square tiles to a graph."""

    def __init__(self, tile: int, dtype: str) -> None:
        self.tile, self.dtype = tile, dtype
        self.bytes = tile * tile * ITEM_BYTES[dtype]
        self.builder = GraphBuilder("cholesky")

    def task(
        self,
        kind: str,
        at: tuple[int, int],
        reads: tuple[int, ...],
        meta_op: str,
        *,
        result: bool = False,
        step: int | None = None,
    ) -> int:
        """Add a task that makes the tile at (row, column); returns its tensor."""
        ranges = [[i * self.tile, (i + 1) * self.tile] for i in at]
        attributes = {"block": ranges, "operands": list(range(len(reads)))}
        attributes |= {"result": "L"} if result else {}
        name = f"{kind}[{at[0]},{at[1]}]" + ("" if step is None else f".{step}")
        return self.builder.op(
            "A" + name[5:] if kind == OpKind.INPUT else name,
            kind,
            reads=reads,
            output_bytes=self.bytes,
            flops=FLOPS.get(kind, 0.0) * self.tile**3,
            touched_bytes=(len(reads) + 1) * self.bytes if reads else 0,
            meta_op=meta_op,
            role="shard" if reads else "",
            dtype=self.dtype,
            kernel=Kernel(kind, reads, ((self.tile, self.tile),), (self.dtype,), attributes),
        )
