"""Files of plans for other programs."""

import csv
import json

import pytest

import doppler as dp


def test_maps_and_tables(tmp_path, dop):
    def run(*arguments):
        return dop(*map(str, arguments)).code

    torch = pytest.importorskip("torch")
    layers = torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    graph = dp.from_torch(torch.nn.Sequential(*layers), (torch.ones(2, 4),)).graph
    paths = {name: tmp_path / name for name in ("g.json", "a.json", "m.json", "o.csv", "o.json")}
    dp.write_graph(graph, paths["g.json"])
    place = ("place", paths["g.json"], "-t", "cpu2", "-p", "round-robin", "-o", paths["a.json"])
    assert not run(*place, "--device-map", paths["m.json"])
    assert set(json.loads(paths["m.json"].read_text()).values()) == {0, 1}
    show = ("show", paths["a.json"], "-g", paths["g.json"])
    assert not run(
        *show, "--operations", paths["o.csv"], "--device-map", paths["m.json"], "--force"
    )
    assert not run(*show, "--operations", paths["o.json"])
    with paths["o.csv"].open() as file:
        rows = list(csv.DictReader(file))
    assert [row["module"] for row in rows] == ["0", "2", "3"]
    again = json.loads(paths["o.json"].read_text())["operations"]
    assert [row["end_s"] for row in again] == [float(row["end_s"]) for row in rows]
    for bad in (("show", paths["a.json"], "--operations", paths["o.csv"]),
                ("show", paths["g.json"], "--operations", paths["o.csv"]),
                (*show, "--operations", tmp_path / "o.txt"),
                (*show, "--device-map", paths["g.json"])):  # fmt: skip
        assert run(*bad) == 2
