from pathlib import Path

import pytest
from command_line import Dop

from doppler.formats import read_graph
from doppler.programs import chainmm, ffnn, mlp
from doppler.sharding import shard


def test_shard_writes_the_paper_graph(dop: Dop, tmp_path: Path) -> None:
    report = dop("shard", "chainmm", "-o", "g.json", "--json").json()
    assert (report["vertices"], report["inputs"]) == (112, 36)
    assert report["flops"] >= 6e12
    assert read_graph(tmp_path / "g.json") == shard(chainmm(), 16)


def test_shard_takes_sizes_cuts_and_method(dop: Dop, tmp_path: Path) -> None:
    sizes = {"batch": 64, "features": 16, "hidden": 128, "classes": 16, "bias": True}
    options = [f"--size={key}={value}".replace("True", "true") for key, value in sizes.items()]
    result = dop(
        *("shard", "ffnn", "--parts", "4", *options),
        *("--cut", "hw2=1,2,2", "--preaggregate", "2", "--abstract-costs", "-o", "g.json"),
    )
    assert result.code == 0
    assert "g.json" in result.out
    expected = shard(
        ffnn(**sizes), 4, partitions={"hw2": (1, 2, 2)}, preaggregate=2, abstract_costs=True
    )
    assert read_graph(tmp_path / "g.json") == expected
    assert dop("shard", "mlp", "--method", "even", "--parts", "8", "-o", "h.json").code == 0


def test_shard_says_where_inputs_are(dop: Dop, tmp_path: Path) -> None:
    options = ("shard", "mlp", "--size", "width=64", "--size", "batch=64", "-o")
    program = mlp(width=64, batch=64)
    assert dop(*options, "a.json").code == 0
    assert read_graph(tmp_path / "a.json") == shard(program, 4, inputs="resident")
    assert dop(*options, "b.json", "--inputs", "marked").code == 0
    assert read_graph(tmp_path / "b.json") == shard(program, 4, inputs="marked")


def test_workloads_that_are_graphs_already(dop: Dop, tmp_path: Path) -> None:
    report = dop("shard", "cholesky", "--parts", "4", "-o", "g.json", "--json").json()
    assert (report["vertices"], report["inputs"]) == (10 + 20, 10)
    report = dop(
        "shard",
        "random-dag",
        "--size",
        "vertices=30",
        "--size",
        "depth=3",
        "-o",
        "h.json",
        "--json",
    )
    assert report.json()["vertices"] == 38


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mlp", "--inputs", "here"], ["no kind of inputs named `here`", "known: "]),
        (["cholesky", "--inputs", "resident"], ["is a graph already", "--inputs"]),
        (["chainm"], ["no workload named `chainm`", "did you mean `chainmm`?"]),
        (["chainmm", "--size", "sise=3"], ["no size named `sise`", "did you mean `size`?"]),
        (["chainmm", "--size", "size"], ["not of the form name=value"]),
        (["chainmm", "--size", "size=big"], ["`big` is not a int", "hint"]),
        (["chainmm", "--size", "size=10"], ["has no cut into 16 even parts", "hint: choose fewer"]),
        (["chainmm", "--parts", "3"], ["powers of two", "hint"]),
        (["mlp", "--method", "even", "--parts", "3"], ["`dense0`: no axis", "into 3 parts"]),
        (["chainmm", "--method", "odd"], ["no partition method named `odd`"]),
        (["chainmm", "--cut", "AB=3,1,1"], ["does not divide"]),
        (["chainmm", "--cut", "AB=4,4"], ["has 2 numbers for 3 axes"]),
        (["chainmm", "--cut", "AC=4,2,2"], ["no operation named `AC`", "did you mean"]),
        (["chainmm", "--cut", "AB"], ["not of the form op=2,1,4"]),
        (["chainmm", "--preaggregate", "1"], ["must be 0 or at least 2"]),
        (["random-dag", "--parts", "4"], ["is a graph already", "hint: leave out --parts"]),
        (["cholesky", "--parts", "5"], ["does not divide into 5 tiles"]),
        (["mlp", "--size", "layers=0"], ["layers is 0"]),
        (["ffnn", "--size", "dtype=float99"], ["no dtype `float99`"]),
    ],
)
def test_mistakes(dop: Dop, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    result = dop("shard", *arguments, "-o", "g.json")
    assert (result.code, result.out) == (2, "")
    for word in words:
        assert word in result.err
    assert not (tmp_path / "g.json").exists()
