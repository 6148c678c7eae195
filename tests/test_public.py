"""The public face: its names are frozen, and importing it is light."""

import subprocess
import sys

import doppler

NAMES = """
Assignment ComparisonRow CompileConfig CompiledModule CostModel Costs Device DopplerError
DopplerPlacer Engine EngineConfig Execution Executor Graph GraphBuilder Host Kernel Link
LowerBounds MemoryPlan Noise OnlineConfig OnlinePlacer OnnxModel OpKind Placer Problem Program
ProgramBuilder ReferenceSimulator Schedule SimConfig Simulator Topology TorchModel Trace TrainConfig
calibrate compare compile device_map errors execute from_networkx from_onnx from_torch lower_bounds
make_placer place probe programs read_assignment read_graph read_topology read_trace shard simulate
to_networkx train validate write_assignment write_graph write_perfetto write_report write_topology
write_trace
"""


def test_names_are_frozen_and_all_there() -> None:
    assert sorted(doppler.__all__) == sorted(NAMES.split())
    for name in doppler.__all__:
        assert getattr(doppler, name) is not None
        assert name in dir(doppler)


def test_unknown_names_are_refused() -> None:
    assert not hasattr(doppler, "Grph")


def test_importing_is_light() -> None:
    """No library but numpy is loaded before it is used."""
    code = (
        "import sys, doppler as dp; dp.Simulator; dp.place; dp.read_graph; dp.programs;"
        "heavy = {'numba', 'torch', 'typer', 'rich', 'scipy', 'networkx', 'gymnasium'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_error_is_a_doppler_error_and_a_builtin_one() -> None:
    kinds = [
        e for e in vars(doppler.errors).values() if isinstance(e, type) and issubclass(e, Exception)
    ]
    kinds = [e for e in kinds if e.__module__ == "doppler.errors" and issubclass(e, Exception)]
    own = [e for e in kinds if e is not doppler.DopplerError]
    assert len(own) == 17
    for kind in own:
        assert issubclass(kind, doppler.DopplerError)
        builtins = (ValueError, TypeError, LookupError, ImportError, OSError, RuntimeError)
        assert issubclass(kind, builtins)
