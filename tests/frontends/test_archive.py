"""Files of exported programs: read whole, and refused where they are not plain."""

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

import doppler as dp
from doppler.errors import ConfigError, FormatError, ModelError
from doppler.frontends.archive import read_model, read_program
from doppler.frontends.gallery import make_example
from doppler.frontends.model_files import import_modules, model_inputs


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """A saved decoder, and what it was saved from."""
    module, args, kwargs = make_example("decoder")
    path = tmp_path_factory.mktemp("models") / "decoder.pt2"
    save(module, args, path)
    return path, module, args, kwargs


def save(module, args, path, **options):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, args, strict=False, **options), path)


def rewritten(source, target, change, **options):
    """A copy of an archive with its parts changed: a function of names and bytes, None to drop."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", **options) as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return target


def test_a_saved_model_equals_the_module(decoder, tmp_path):
    path, module, args, _ = decoder
    model = read_model(path)
    again = dp.from_torch(module, args, name="decoder")
    assert model.graph.digest() == again.graph.digest()
    dp.write_graph(model.graph, tmp_path / "graph.json")
    graph = dp.read_graph(tmp_path / "graph.json")
    assert graph == model.graph
    assert graph.provenance["format"] == "pt2"
    inputs = model_inputs(graph, Path(), {"tokens": args[0]})
    assignment = dp.place(graph, "cpu2", "round-robin")
    found = dp.execute(graph, "cpu2", assignment, inputs=inputs).outputs["output"]
    with torch.no_grad():
        assert torch.equal(found, module(*args))


def test_the_file_is_named_as_seen_from_a_folder(decoder, tmp_path):
    path = tmp_path / "model.pt2"
    shutil.copy(decoder[0], path)
    (tmp_path / "graphs").mkdir()
    graph = read_model(path, folder=tmp_path / "graphs", coarsen=4).graph
    assert graph.provenance["file"] == "../model.pt2"
    assert len(graph.assigned) == 4
    assert len(model_inputs(graph, tmp_path / "graphs")) == graph.is_input.sum()
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(ModelError, match="changed"):
        model_inputs(graph, tmp_path / "graphs")
    assert len(model_inputs(graph, None)) == graph.is_input.sum()
    path.unlink()
    with pytest.raises(FormatError, match="no file"):
        model_inputs(graph, tmp_path / "graphs")


def test_a_graph_that_was_not_imported_needs_no_model():
    graph = dp.shard(dp.programs.chainmm(size=8), parts=2)
    assert model_inputs(graph, None) is None
    assert model_inputs(graph, None, {"A": 1}) == {"A": 1}


def test_pickles_are_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (exit, (3,))

    plain, saved = tmp_path / "a.pkl", tmp_path / "b.pt"
    plain.write_bytes(pickle.dumps(Bomb()))
    torch.save({"a": torch.ones(1)}, saved)
    for path in (plain, saved):
        with pytest.raises(FormatError, match="could run code"):
            read_model(path)


@pytest.mark.parametrize("left", [0, 1, 3, 100, 30_000])
def test_a_file_that_was_cut_off_is_refused(decoder, tmp_path, left):
    path = tmp_path / "cut.pt2"
    path.write_bytes(decoder[0].read_bytes()[:left])
    with pytest.raises(FormatError, match=r"no \.pt2 file, or was cut off"):
        read_model(path)


def test_a_corrupt_part_is_refused(decoder, tmp_path):
    data = bytearray(decoder[0].read_bytes())
    with zipfile.ZipFile(decoder[0]) as archive:
        info = next(i for i in archive.infolist() if i.filename.endswith("weight_3"))
    data[info.header_offset + 2000] ^= 0xFF
    path = tmp_path / "corrupt.pt2"
    path.write_bytes(data)
    with pytest.raises(FormatError, match="corrupt"):
        read_model(path)


def test_a_bomb_is_refused(decoder, tmp_path):
    def inflate(name, data):
        return bytes(10_000_000) if name.endswith("weight_0") else data

    path = rewritten(decoder[0], tmp_path / "bomb.pt2", inflate, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError, match="compressed"):
        read_model(path)


def edited(part, change):
    def edit(name, data):
        if not name.endswith(part):
            return data
        document = json.loads(data)
        change(document)
        return json.dumps(document)

    return edit


def pickled(document):
    next(iter(document["config"].values()))["use_pickle"] = True


def evaluated(document):
    document["graph_module"]["range_constraints"] = {"s0": {"expr_str": "exit()"}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (edited("model_weights_config.json", pickled), "pickled"),
        (edited("models/model.json", evaluated), "no expression"),
        (edited("models/model.json", lambda d: d.clear()), "cannot be loaded"),
        (lambda n, d: None if n.endswith("model.json") else d, "no .pt2 file"),
        (lambda n, d: b"[" if n.endswith("model.json") else d, "not JSON"),
        (lambda n, d: b"[]" if n.endswith("model.json") else d, "no object"),
    ],
    ids=["pickled weight", "code for a size", "empty", "no program", "no JSON", "a list"],
)
def test_a_program_that_is_none_is_refused(decoder, tmp_path, change, says):
    path = rewritten(decoder[0], tmp_path / "odd.pt2", change)
    with pytest.raises(FormatError, match=says):
        read_model(path)


def test_compiled_code_is_refused(decoder, tmp_path):
    path = tmp_path / "code.pt2"
    shutil.copy(decoder[0], path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("decoder/data/aotinductor/model/x.so", b"")
    with pytest.raises(FormatError, match="no plain part"):
        read_program(path)


def test_sizes_that_are_symbols_run_with_what_they_were_exported_for(tmp_path):
    module, args, _ = make_example("mlp")
    path = tmp_path / "dynamic.pt2"
    save(module, args, path, dynamic_shapes=({0: torch.export.Dim("n", max=64)},))
    model = read_model(path)
    found = model.run("cpu2", dp.place(model.graph, "cpu2", "round-robin"), *args)
    with torch.no_grad():
        assert torch.equal(tree_leaves(found)[0], module(*args))


def test_modules_are_imported_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_module_for_ops.py").write_text("READ = True\n")
    import_modules(["own_module_for_ops"])
    (tmp_path / "broken_module_for_ops.py").write_text("raise KeyError('oops')\n")
    for name in ("broken_module_for_ops", "no_such_module_for_ops"):
        with pytest.raises(ConfigError, match="cannot be imported"):
            import_modules([name])
