"""`dop import` of ONNX models, and `dop execute` of what comes of it."""

import json
from pathlib import Path

import numpy as np
import onnx_models as models
from command_line import Dop


def test_a_model_is_imported_placed_and_run(dop: Dop, tmp_path: Path) -> None:
    path = models.save(models.make(*models.CONVOLUTIONS), tmp_path / "net.onnx")
    (tmp_path / "graphs").mkdir()
    result = dop("import", "net.onnx", "-o", "graphs/g.json")
    assert result.code == 2
    assert "dimension `batch`" in result.err
    assert "--dim batch=" in result.err
    report = dop("import", "net.onnx", "--dim", "batch=2", "-o", "graphs/g.json", "--json").json()
    assert (report["name"], report["vertices"], report["inputs"]) == ("net", 9, 6)
    place = ("place", "graphs/g.json", "-t", "cpu2", "--placer", "round-robin", "-o", "a.json")
    assert dop(*place).code == 0
    image = models.random(2, 3, 12, 12)
    np.savez(tmp_path / "in.npz", image=image)
    run = ("execute", "graphs/g.json", "a.json", "-t", "cpu2", "--repeat", "1")
    result = dop(*run, "--inputs", "in.npz", "--outputs", "out.npz")
    assert result.code == 0, result.err
    found = np.load(tmp_path / "out.npz")["scores"]
    np.testing.assert_allclose(found, models.reference(path, image=image)["scores"], rtol=1e-5)
    path.write_bytes(b"another")
    assert dop(*run).code == 2
    assert dop(*run, "--random-weights").code == 0


def test_a_model_is_recognised_by_its_content(dop: Dop, tmp_path: Path) -> None:
    models.save(models.split(), tmp_path / "model.bin")
    report = dop("import", "model.bin", "-o", "g.json", "--coarsen", "1", "--json").json()
    assert report["vertices"] - report["inputs"] == 1
    provenance = json.loads((tmp_path / "g.json").read_text())["provenance"]
    assert (provenance["format"], provenance["file"]) == ("onnx", "model.bin")


def test_other_commands_say_that_a_model_must_be_imported(dop: Dop, tmp_path: Path) -> None:
    models.save(models.split(), tmp_path / "model.onnx")
    result = dop("place", "model.onnx", "-t", "cpu2", "-p", "single")
    assert result.code == 2
    assert "dop import" in result.err


def test_sizes_are_checked(dop: Dop, tmp_path: Path) -> None:
    models.save(models.make(*models.CONVOLUTIONS), tmp_path / "net.onnx")
    cases = [["batch"], ["batch=x"], ["=2"], ["batch=0"], ["batch=2", "batch=3"], ["depth=2"]]
    for sizes in cases:
        words = [word for size in sizes for word in ("--dim", size)]
        result = dop("import", "net.onnx", *words, "-o", "g.json")
        assert result.code == 2, sizes
        assert not (tmp_path / "g.json").exists()
    (tmp_path / "text").write_text("3\n0\n0\n1\n1,1\n1,1\n")
    assert "--dim is for ONNX" in dop("import", "text", "--dim", "a=1", "-o", "g.json").err


def test_what_cannot_be_run_is_told(dop: Dop, tmp_path: Path) -> None:
    header = '<ir_version: 8, opset_import: ["": 17, "acme": 1]>'
    text = "odd (float[2] x) => (float[2] y) { y = acme.Odd(x) }"
    models.save(models.make(text, {}, header), tmp_path / "odd.onnx")
    result = dop("import", "odd.onnx", "-o", "g.json")
    assert result.code == 0
    assert "acme.Odd" in result.err
    assert dop("place", "g.json", "-t", "cpu2", "-p", "single", "-o", "a.json").code == 0
    result = dop("execute", "g.json", "a.json", "-t", "cpu2")
    assert result.code == 2
    assert "vertex `y`: it needs operation `acme.Odd`" in result.err
