"""Names from files are printed as they are: nothing in them acts on the terminal."""

import json
from pathlib import Path

from command_line import Dop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doppler.base.text import visible
from doppler.formats import read_graph
from doppler.graph import Graph, GraphBuilder, write_graph
from doppler.sim import simulate
from doppler.topology import Device, Topology, write_topology
from doppler.trace import write_trace

NASTY = (
    "[/bold]",
    "conv[same]",
    "conv[valid]",
    "a\x1b[2Jb",
    "c\x9b1m",
    "x\u202ey",
    ":smile:",
    "\\",
)


def named(names: list[str], *, kind: str = "matmul", title: str = "g") -> Graph:
    builder = GraphBuilder(title)
    for name in names:
        builder.op(name, kind, reads=[], output_bytes=1, exec_s=1.0, transfer_s=1.0)
    return builder.build()


def assert_clean(*texts: str) -> None:
    for text in texts:
        assert text.replace("\n", "").isprintable(), text


def test_every_name_of_a_graph(dop: Dop, tmp_path: Path) -> None:
    for kind in NASTY:
        write_graph(named(list(NASTY), kind=kind, title=kind), tmp_path / "g.json")
        for command in (
            ("show", "g.json"),
            ("place", "g.json", "-p", "single", "-o", "out[final].json"),
            ("show", "out[final].json"),
            ("show", "out[final].json", "-g", "g.json"),
            ("simulate", "g.json", "out[final].json", "-o", "t.json"),
            ("show", "t.json"),
        ):
            result = dop(*command)
            assert result.code == 0, result.err
            assert_clean(result.out, result.err)
            if command[0] in ("place", "show") and "json" in command[1] and command[1] != "t.json":
                assert visible(kind) in result.out or command == ("show", "out[final].json")
        placed = dop("place", "g.json", "-p", "single", "-o", "out[final].json").out
        assert all(visible(name) in placed for name in NASTY)
        assert "wrote out[final].json" in placed


def test_every_name_of_a_topology(dop: Dop, tmp_path: Path) -> None:
    write_graph(named(["a", "b"]), tmp_path / "g.json")
    topology = Topology.preset("reference:2")
    for name in NASTY:
        devices = (Device(name), Device(f"{name}2"))
        mine = Topology(name, devices, topology.links, topology.route, description=name)
        write_topology(mine, tmp_path / "m.json")
        for command in (("show", "m.json"), ("place", "g.json", "-t", "m.json", "-p", "single")):
            result = dop(*command)
            assert result.code == 0, result.err
            assert_clean(result.out, result.err)
            assert visible(name) in result.out
        for command in (
            ("place", "g.json", "-t", "m.json", "-p", "single", "-o", "a.json"),
            ("simulate", "g.json", "a.json", "-t", "m.json", "-o", "t.json"),
            ("show", "t.json"),
        ):
            result = dop(*command)
            assert result.code == 0, result.err
            assert_clean(result.out, result.err)
        assert visible(name) in result.out  # beside the timeline


def test_a_file_s_name_that_is_not_utf_8(dop: Dop, tmp_path: Path) -> None:
    """It becomes the graph's name, and what is written can be read again."""
    text = "2\n0\n\n\n1000,4000,einsummable\n"
    (tmp_path / "caf\udce9.txt").write_text(text)
    result = dop("import", "caf\udce9.txt", "-o", "g.json")
    assert result.code == 0, result.err
    assert read_graph(tmp_path / "g.json").name == r"caf\xe9"
    shown = dop("show", "caf\udce9.txt")
    assert shown.code == 0, shown.err
    assert_clean(shown.out, shown.err)


def test_errors_are_clean_too(dop: Dop, tmp_path: Path) -> None:
    for name in NASTY:
        for command in (
            ("show", f"{name}.json"),
            ("place", f"{name}.json"),
            ("place", "g.json", "-p", name),
            ("list", name),
            (name,),
            ("place", "--" + name),
            ("place", "g.json", "--seed", name),
        ):
            result = dop(*command)
            assert result.code == 2
            assert_clean(result.out, result.err)
            assert "Traceback" not in result.err


def test_json_is_clean_and_whole(dop: Dop, tmp_path: Path) -> None:
    write_graph(named(list(NASTY)), tmp_path / "g.json")
    result = dop("place", "g.json", "-t", "reference:2", "-p", "single", "--json")
    assert_clean(result.out)
    assert set(result.json()["plan"]) == set(NASTY)
    assert_clean((tmp_path / "g.json").read_text())


def test_a_trace_and_a_checkpoint(dop: Dop, tmp_path: Path) -> None:
    from safetensors.numpy import save

    from doppler.policies.arrays.checkpoint import shipped_bytes
    from doppler.policies.arrays.tensor_file import with_checksum

    graph, topology = named(["a"], title="\x1b[2J"), Topology.preset("reference:2")
    from doppler.placers import place

    write_trace(simulate(graph, topology, place(graph, topology, "single")), tmp_path / "t.json")
    shown = dop("show", "t.json")
    assert r"\x1b[2J" in shown.out
    assert_clean(shown.out)
    metadata = json.loads(shipped_bytes()[8 : 8 + int.from_bytes(shipped_bytes()[:8], "little")])
    texts = metadata["__metadata__"] | {"note": "\x1b[2J[/bold]"}
    import numpy as np

    data = save({"w": np.zeros(1, np.float32)}, texts)
    (tmp_path / "p.safetensors").write_bytes(with_checksum(data))
    shown = dop("show", "p.safetensors")
    assert shown.code == 0, shown.err
    assert r"\x1b[2J[/bold]" in shown.out
    assert_clean(shown.out)
    bad = texts | {"format": "\x1b[2J", "version": "\x1b[2J"}
    data = save({"w": np.zeros(1, np.float32)}, bad)
    (tmp_path / "bad.safetensors").write_bytes(with_checksum(data))
    for command in (
        ("show", "bad.safetensors"),
        ("place", "t.json", "-p", "doppler:bad.safetensors"),
    ):
        refused = dop(*command)
        assert refused.code == 2
        assert_clean(refused.err)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12))
def test_any_name_is_printed_clean_and_can_be_read_back(
    dop: Dop, tmp_path: Path, name: str
) -> None:
    write_graph(named([name], kind="matmul", title="g"), tmp_path / "g.json", force=True)
    result = dop("place", "g.json", "-t", "reference:2", "-p", "single")
    assert result.code == 0, result.err
    assert_clean(result.out, result.err)
    rows = [line for line in result.out.splitlines() if " matmul " in line and "device" in line]
    shown = rows[0][1 : rows[0].rindex("matmul")].rstrip(" ")
    assert shown.encode("latin-1", "backslashreplace").decode("unicode_escape") == name.rstrip(" ")
