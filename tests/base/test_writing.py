"""Writing never destroys what is there: files, links, pipes and devices."""

import os
import stat
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from doppler.assignment import Assignment, read_assignment, write_assignment
from doppler.base.writing import check_output, is_stdout, write_bytes, write_text
from doppler.errors import OutputError
from doppler.formats import read_graph
from doppler.graph import Graph, write_graph
from doppler.programs import random_dag
from doppler.sim import simulate
from doppler.topology import Topology, read_topology, write_topology
from doppler.trace import write_trace


@pytest.fixture
def graph() -> Graph:
    return random_dag(vertices=6, depth=2, seed=0)


def test_a_symbolic_link_is_written_through(tmp_path: Path, graph: Graph) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("")
    link.symlink_to(target)
    write_graph(graph, link)
    assert link.is_symlink()
    assert read_graph(target) == graph


def test_a_link_to_nothing_makes_the_file_it_names(tmp_path: Path, graph: Graph) -> None:
    (tmp_path / "link.json").symlink_to("later.json")
    write_graph(graph, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert read_graph(tmp_path / "later.json") == graph


def test_a_fifo_is_written_into_and_stays(tmp_path: Path, graph: Graph) -> None:
    fifo, got = tmp_path / "fifo", list[str]()
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: got.append(fifo.read_text()))
    reader.start()
    write_graph(graph, fifo)
    reader.join(timeout=30)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    (tmp_path / "copy.json").write_text(got[0])
    assert read_graph(tmp_path / "copy.json") == graph


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_is_written_into_and_stays(graph: Graph, device: str) -> None:
    before = Path(device).stat()
    write_graph(graph, device)
    after = Path(device).stat()
    assert stat.S_ISCHR(after.st_mode)
    assert (before.st_ino, before.st_rdev) == (after.st_ino, after.st_rdev)


def test_a_full_device_is_an_error(graph: Graph) -> None:
    with pytest.raises(OutputError, match="cannot write `/dev/full`: No space left"):
        write_graph(graph, "/dev/full")


def test_the_standard_output(graph: Graph, capfd: pytest.CaptureFixture[str]) -> None:
    write_graph(graph, "-")
    first = capfd.readouterr().out
    write_graph(graph, "/dev/stdout")
    assert capfd.readouterr().out == first
    assert first.startswith('{"format": "doppler-graph"')
    assert not Path("-").exists()


def test_the_file_that_stdout_goes_to_is_not_replaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`dop … -o out.json > out.json`."""
    path = tmp_path / "out.json"
    with capfd.disabled(), path.open("w") as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            assert is_stdout(path)
            inode = path.stat().st_ino
            check_output(path, kind="doppler-graph")
            assert path.stat().st_ino == inode
        finally:
            os.dup2(kept, 1)
            os.close(kept)
    assert not is_stdout(path)


def test_a_descriptor_is_written_into(tmp_path: Path, graph: Graph) -> None:
    with (tmp_path / "log.json").open("w") as file:
        write_graph(graph, f"/dev/fd/{file.fileno()}")
        inode = os.fstat(file.fileno()).st_ino
    assert (tmp_path / "log.json").stat().st_ino == inode
    assert read_graph(tmp_path / "log.json") == graph


def test_a_read_only_file_is_respected_even_by_root(tmp_path: Path, graph: Graph) -> None:
    path = tmp_path / "g.json"
    write_graph(graph, path)
    path.chmod(0o444)
    for force in (False, True):
        with pytest.raises(OutputError, match="it is read-only"):
            write_graph(graph, path, force=force)


def test_the_umask_of_the_process_is_never_changed(
    tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to all threads: another's files would get other permissions meanwhile."""
    changes: list[int] = []
    monkeypatch.setattr(os, "umask", changes.append)
    write_graph(graph, tmp_path / "g.json")
    write_graph(graph, tmp_path / "g.json")
    assert changes == []


def test_permissions_stay_and_new_files_get_the_usual_ones(tmp_path: Path, graph: Graph) -> None:
    path = tmp_path / "g.json"
    write_graph(graph, path)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o640)
    write_graph(graph, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_other_things_are_refused(tmp_path: Path, graph: Graph) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(OutputError, match="not a regular file"):
            write_graph(graph, tmp_path / "socket")
    with pytest.raises(OutputError, match="it is a folder"):
        write_graph(graph, tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OutputError, match="cannot write"):
        write_graph(graph, tmp_path / "loop")
    with pytest.raises(OutputError, match="cannot write"):
        write_graph(graph, str(tmp_path / "null\0"))


def writers() -> dict[str, Callable[[Path, bool], None]]:
    graph, topology = random_dag(vertices=6, depth=2, seed=0), Topology.preset("cpu2")
    assignment = Assignment(np.where(graph.is_input, -1, 0))
    trace = simulate(graph, topology, assignment)
    return {
        "graph": lambda path, force: write_graph(graph, path, force=force),
        "topology": lambda path, force: write_topology(topology, path, force=force),
        "assignment": lambda path, force: write_assignment(assignment, path, force=force),
        "trace": lambda path, force: write_trace(trace, path, force=force),
    }


def test_a_file_of_another_kind_is_written_over_with_force_only(tmp_path: Path) -> None:
    for mine, write in writers().items():
        for other, write_other in writers().items():
            path = tmp_path / f"{mine}-{other}.json"
            write_other(path, False)
            before = path.read_bytes()
            if mine == other:
                write(path, False)
                continue
            with pytest.raises(OutputError, match=f"holds a doppler-{other}") as caught:
                write(path, False)
            assert "--force" in str(caught.value.hint)
            assert path.read_bytes() == before
            write(path, True)
            assert path.read_bytes() != before


@pytest.mark.parametrize("content", ["print('mine')\n", "# a topology\n[[devices]]\n", "{}", "[1]"])
def test_a_file_that_is_not_ours_is_not_written_over(
    tmp_path: Path, graph: Graph, content: str
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(OutputError, match="was not written by doppler"):
        write_graph(graph, path)
    assert path.read_text() == content


def archive(member: str) -> bytes:
    data = BytesIO()
    with ZipFile(data, "w") as file:
        file.writestr(member, "x")
    return data.getvalue()


@pytest.mark.parametrize(
    ("kind", "own", "others"),
    [
        ("npz", archive("y.npy"), archive("model/data.pkl")),
        ("svg", b"<?xml version='1.0'?>\n<svg></svg>", b"<?xml version='1.0'?>\n<pom></pom>"),
        ("csv", b"vertex,device,device_number\na,gpu0,0\n", b"vertex,weight\na,1\n"),
        (
            "checkpoint",
            b"\x20" + bytes(7) + b'{"__metadata__": {"format": "doppler-policy"}}',
            b"\x20" + bytes(7) + b'{"weights": {}}',
        ),
    ],
)
def test_somebody_elses_file_of_the_same_container_is_kept(
    tmp_path: Path, kind: str, own: bytes, others: bytes
) -> None:
    """A model in a zip archive is no file of arrays, and not every XML file is a picture."""
    path = tmp_path / "file"
    path.write_bytes(own)
    write_bytes(path, b"new", kind=kind)
    assert path.read_bytes() == b"new"
    path.write_bytes(others)
    with pytest.raises(OutputError, match="was not written by doppler"):
        write_bytes(path, b"new", kind=kind)
    assert path.read_bytes() == others


def test_an_empty_file_may_be_written_over(tmp_path: Path, graph: Graph) -> None:
    (tmp_path / "g.json").touch()
    write_graph(graph, tmp_path / "g.json")
    assert read_graph(tmp_path / "g.json") == graph


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_bytes(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "old"


def test_an_input_is_never_written_over(tmp_path: Path, graph: Graph) -> None:
    path, link = tmp_path / "g.json", tmp_path / "link.json"
    write_graph(graph, path)
    link.symlink_to(path)
    for output in (path, link):
        with pytest.raises(OutputError, match="is an input of this command"):
            check_output(output, kind="doppler-graph", inputs=(None, path), force=True)
    check_output("-", inputs=("-",))
    check_output("/dev/null", inputs=("/dev/null",))


def test_long_names_can_be_written(tmp_path: Path, graph: Graph) -> None:
    path = tmp_path / ("n" * 250 + ".json")
    write_graph(graph, path)
    assert read_graph(path) == graph


def test_readers_take_pipes(tmp_path: Path, graph: Graph) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    topology = Topology.preset("cpu2")
    assignment = Assignment(np.where(graph.is_input, -1, 0))
    cases = [
        (lambda path: write_graph(graph, path), read_graph, graph),
        (lambda path: write_topology(topology, path), read_topology, topology),
        (lambda path: write_assignment(assignment, path), read_assignment, assignment),
    ]
    for write, read, value in cases:
        writer = threading.Thread(target=write, args=(fifo,))
        writer.start()
        assert read(fifo) == value
        writer.join(timeout=30)
