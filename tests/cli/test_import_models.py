"""`dop import` of PyTorch models, and `dop execute` of what comes of it."""

import json
import warnings
from pathlib import Path

import numpy as np
import torch
from command_line import Dop

from doppler.frontends.gallery import make_example


def save(module: torch.nn.Module, args: tuple[torch.Tensor, ...], path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, args, strict=False), path)


def test_a_model_is_imported_placed_and_run(dop: Dop, tmp_path: Path) -> None:
    module, args, _ = make_example("mlp")
    save(module, args, tmp_path / "mlp.pt2")
    (tmp_path / "graphs").mkdir()
    report = dop("import", "mlp.pt2", "-o", "graphs/g.json", "--json").json()
    assert (report["name"], report["vertices"], report["inputs"]) == ("mlp", 7, 5)
    place = ("place", "graphs/g.json", "-t", "cpu2", "--placer", "round-robin", "-o", "a.json")
    assert dop(*place).code == 0
    np.savez(tmp_path / "in.npz", input=args[0].numpy())
    run = ("execute", "graphs/g.json", "a.json", "-t", "cpu2", "--repeat", "1")
    result = dop(*run, "--inputs", "in.npz", "--outputs", "out.npz")
    assert result.code == 0, result.err
    found = np.load(tmp_path / "out.npz")["output"]
    with torch.no_grad():
        assert np.array_equal(found, module(*args).numpy())
    (tmp_path / "mlp.pt2").write_bytes(b"another")
    assert "changed" in dop(*run).err
    assert dop(*run, "--random-weights").code == 0


def test_the_grain_is_an_option(dop: Dop, tmp_path: Path) -> None:
    module, args, _ = make_example("mlp")
    save(module, args, tmp_path / "mlp.pt2")
    report = dop("import", "mlp.pt2", "-o", "g.json", "--coarsen", "1", "--json").json()
    assert report["vertices"] - report["inputs"] == 1
    result = dop("import", "mlp.pt2", "-o", "g.json", "--coarsen", "some", "--force")
    assert result.code == 2
    assert "coarsen" in result.err


def test_a_model_in_parts_is_imported_placed_and_run(dop: Dop, tmp_path: Path) -> None:
    module, args, _ = make_example("mlp")
    save(module, args, tmp_path / "mlp.pt2")
    assert "lifted 100.0 %" in dop("import", "mlp.pt2", "-o", "g.json", "--parts", "2").out
    cut = ("--parts", "4", "--method", "tokens", "--force", "--json")
    report = dop("import", "mlp.pt2", "-o", "g.json", *cut).json()
    assert (report["parts"], report["lifted_share"], report["left_whole"]) == (4, 1, {})
    assert report["vertices"] - report["inputs"] > 4
    place = ("place", "g.json", "-t", "cpu2", "--placer", "round-robin", "-o", "a.json")
    assert dop(*place).code == 0
    np.savez(tmp_path / "in.npz", input=args[0].numpy())
    run = ("execute", "g.json", "a.json", "-t", "cpu2", "--repeat", "1")
    result = dop(*run, "--inputs", "in.npz", "--outputs", "out.npz")
    assert result.code == 0, result.err
    found = np.load(tmp_path / "out.npz")["output"]
    with torch.no_grad():
        assert np.allclose(found, module(*args).numpy(), rtol=0, atol=1e-6)
    assert dop(*run, "--random-weights").code == 0
    mapped = dop("place", "g.json", "-t", "cpu2", "-o", "b.json", "--device-map", "m.json")
    assert (mapped.code, "is a model in parts" in mapped.err) == (2, True)
    unknown = dop("import", "mlp.pt2", "-o", "h.json", "--parts", "2", "--method", "rows")
    assert (unknown.code, "known: columns, paper, tokens" in unknown.err) == (2, True)
    for parts in ("3", "0"):
        refused = dop("import", "mlp.pt2", "-o", "h.json", "--parts", parts)
        assert (refused.code, "parts is" in refused.err) == (2, True)
    assert dop("import", "g.json", "-o", "h.json", "--parts", "2").code == 2


def test_an_operation_of_ones_own_needs_its_module(dop: Dop, tmp_path: Path) -> None:
    (tmp_path / "ops_of_test_import.py").write_text(
        "import torch\n"
        "@torch.library.custom_op('ownops::double', mutates_args=())\n"
        "def double(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x * 2\n"
        "@double.register_fake\n"
        "def _(x):\n"
        "    return torch.empty_like(x)\n"
    )
    result = dop("execute", "g.json", "a.json", "--import", "no_such_module_here")
    assert result.code == 2
    calls = [["ownops.double.default", [{"in": 0}], {}]]
    kernels = [
        {"op": "input", "inputs": [], "shapes": [[2]], "dtypes": ["float32"]}
        | {"attributes": {"block": [[0, 2]]}},
        {"op": "piece", "inputs": [0], "shapes": [[2]], "dtypes": ["float32"]}
        | {"attributes": {"calls": calls, "returns": [{"at": 0}], "results": ["y"]}},
    ]
    graph = {"format": "doppler-graph", "version": 1, "provenance": {"format": "test"}}
    graph["vertices"] = {"kind": ["input", "double"], "meta_op": ["x", "y"], "kernel": kernels}
    graph |= {"tensors": {"producer": [0, 1], "bytes": [8, 8]}}
    graph |= {"edges": {"tensor": [0], "reader": [1]}}
    (tmp_path / "g.json").write_text(json.dumps(graph))
    assert dop("place", "g.json", "-t", "cpu2", "--placer", "single", "-o", "a.json").code == 0
    run = ("execute", "g.json", "a.json", "-t", "cpu2", "--repeat", "1")
    assert "--import MODULE" in dop(*run).err
    assert dop(*run, "--import", "ops_of_test_import").code == 0


def test_a_pickle_is_refused(dop: Dop, tmp_path: Path) -> None:
    torch.save(torch.ones(1), tmp_path / "model.pt")
    result = dop("import", "model.pt", "-o", "g.json")
    assert result.code == 2
    assert "could run code" in result.err
    assert not (tmp_path / "g.json").exists()


def test_a_model_of_the_gallery(dop: Dop) -> None:
    names = [row["name"] for row in dop("list", "models", "--json").json()]
    assert {"llama", "unet", "dlrm"} <= set(names)
    assert len(names) >= 30
    assert not dop("import", "gallery:mlp", "-o", "g.json").code
    assert not dop("place", "g.json", "-t", "cpu2", "-p", "heft", "-o", "a.json").code
    assert not dop("execute", "g.json", "a.json", "-t", "cpu2").code
    result = dop("import", "gallery:lama", "-o", "h.json")
    assert result.code == 2
    assert "did you mean `llama`" in result.err
    assert dop("import", "g.json", "--full-size", "-o", "h.json").code == 2
    assert dop("import", "gallery:mlp", "--full-size", "-o", "h.json").code == 2
