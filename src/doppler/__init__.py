"""Doppler: which device should run each operation of a dataflow graph, and how good is that?

>>> import doppler as dp
>>> graph = dp.shard(dp.programs.llama_block(), parts=4)
>>> topology = dp.Topology.preset("p100x4")
>>> assignment = dp.place(graph, topology, "critical-path", seed=0)
>>> trace = dp.simulate(graph, topology, assignment)
>>> trace.makespan_s >= dp.lower_bounds(graph, topology).best_s
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from doppler import errors, programs
    from doppler.assignment import Assignment, read_assignment, write_assignment
    from doppler.cost import CostModel, Costs
    from doppler.engine.config import EngineConfig
    from doppler.engine.engine import Engine, execute
    from doppler.engine.execution import Execution
    from doppler.errors import DopplerError
    from doppler.executor import Executor
    from doppler.formats import from_networkx, read_graph, to_networkx
    from doppler.frontends.compilation.compiled_plans import CompileConfig
    from doppler.frontends.compiled import CompiledModule, compile  # noqa: A004
    from doppler.frontends.device_map import device_map
    from doppler.frontends.onnx.onnx_import import from_onnx
    from doppler.frontends.onnx.onnx_model import OnnxModel
    from doppler.frontends.torch_export import from_torch
    from doppler.frontends.torch_model import TorchModel
    from doppler.graph import Graph, GraphBuilder, Kernel, OpKind, write_graph
    from doppler.machine.calibration import calibrate
    from doppler.machine.probe import probe
    from doppler.machine.validation import validate
    from doppler.memory_plan import MemoryPlan
    from doppler.placers import (
        ComparisonRow,
        LowerBounds,
        Placer,
        compare,
        lower_bounds,
        make_placer,
        place,
    )
    from doppler.placers.learned.doppler import DopplerPlacer
    from doppler.problem import Problem
    from doppler.programs import Program, ProgramBuilder
    from doppler.report import write_perfetto, write_report
    from doppler.schedule import Schedule
    from doppler.serving.config import OnlineConfig
    from doppler.serving.online import OnlinePlacer
    from doppler.sharding import shard
    from doppler.sim import Noise, ReferenceSimulator, SimConfig, Simulator, simulate
    from doppler.topology import Device, Host, Link, Topology, read_topology, write_topology
    from doppler.trace import Trace, read_trace, write_trace
    from doppler.training.api import train
    from doppler.training.config import TrainConfig

__version__ = "0.1.0"

_MODULE_OF = {
    "Assignment": "doppler.assignment",
    "ComparisonRow": "doppler.placers",
    "CompileConfig": "doppler.frontends.compilation.compiled_plans",
    "CompiledModule": "doppler.frontends.compiled",
    "CostModel": "doppler.cost",
    "Costs": "doppler.cost",
    "Device": "doppler.topology",
    "DopplerError": "doppler.errors",
    "DopplerPlacer": "doppler.placers.learned.doppler",
    "Engine": "doppler.engine.engine",
    "EngineConfig": "doppler.engine.config",
    "Execution": "doppler.engine.execution",
    "Executor": "doppler.executor",
    "Graph": "doppler.graph",
    "GraphBuilder": "doppler.graph",
    "Host": "doppler.topology",
    "Kernel": "doppler.graph",
    "Link": "doppler.topology",
    "LowerBounds": "doppler.placers",
    "Noise": "doppler.sim",
    "OnlineConfig": "doppler.serving.config",
    "OnlinePlacer": "doppler.serving.online",
    "OnnxModel": "doppler.frontends.onnx.onnx_model",
    "OpKind": "doppler.graph",
    "Placer": "doppler.placers",
    "Problem": "doppler.problem",
    "Program": "doppler.programs",
    "ProgramBuilder": "doppler.programs",
    "ReferenceSimulator": "doppler.sim",
    "MemoryPlan": "doppler.memory_plan",
    "Schedule": "doppler.schedule",
    "SimConfig": "doppler.sim",
    "Simulator": "doppler.sim",
    "Topology": "doppler.topology",
    "TorchModel": "doppler.frontends.torch_model",
    "Trace": "doppler.trace",
    "TrainConfig": "doppler.training.config",
    "calibrate": "doppler.machine.calibration",
    "compare": "doppler.placers",
    "compile": "doppler.frontends.compiled",
    "device_map": "doppler.frontends.device_map",
    "execute": "doppler.engine.engine",
    "from_networkx": "doppler.formats",
    "from_onnx": "doppler.frontends.onnx.onnx_import",
    "from_torch": "doppler.frontends.torch_export",
    "lower_bounds": "doppler.placers",
    "make_placer": "doppler.placers",
    "place": "doppler.placers",
    "probe": "doppler.machine.probe",
    "read_assignment": "doppler.assignment",
    "read_graph": "doppler.formats",
    "read_topology": "doppler.topology",
    "read_trace": "doppler.trace",
    "shard": "doppler.sharding",
    "simulate": "doppler.sim",
    "to_networkx": "doppler.formats",
    "train": "doppler.training.api",
    "validate": "doppler.machine.validation",
    "write_assignment": "doppler.assignment",
    "write_graph": "doppler.graph",
    "write_perfetto": "doppler.report",
    "write_report": "doppler.report",
    "write_topology": "doppler.topology",
    "write_trace": "doppler.trace",
}
_SUBMODULES = ("errors", "programs")

__all__ = [*_MODULE_OF, *_SUBMODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    elif name in _SUBMODULES:
        value = import_module(f"doppler.{name}")
    else:
        raise AttributeError(f"module 'doppler' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
