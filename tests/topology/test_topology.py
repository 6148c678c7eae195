import json
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

from doppler.errors import DopplerError, FormatError, TopologyError, UnknownNameError
from doppler.topology import (
    DTYPE_CLASSES,
    PRESETS,
    Device,
    Host,
    Link,
    Topology,
    preset,
    read_topology,
    topology_to_json,
    write_topology,
)

PAIR = """
format = "doppler-topology"
version = 1
name = "pair"
description = "two unequal devices"
host = { dispatch_s = 1e-6, completion_s = 2e-6 }

[[devices]]
name = "big"
flops_per_s = { float32 = 2e12, float16 = 4e12 }
memory_bytes_per_s = 1e11
memory_bytes = 16e9
slots = 2
launch_s = 5e-6
group = "left"

[[devices]]
name = "small"
flops_per_s = 1e12
memory_bytes_per_s = 1e10

[[links]]
name = "bus"
bandwidth_bytes_per_s = 1e9
latency_s = 1e-5
lanes = 0
pairs = [["big", "small"]]
"""


SPEEDS = {"flops_per_s": 1e12, "memory_bytes_per_s": 1e10}
PLAIN = {
    "format": "doppler-topology",
    "version": 1,
    "name": "pair",
    "host": {"dispatch_s": 1e-6},
    "devices": [{"name": "a", **SPEEDS}, {"name": "b", **SPEEDS}],
    "links": [{"name": "bus", "bandwidth_bytes_per_s": 1e9, "pairs": [["a", "b"]]}],
}


MATMUL = "matmul 8x8 8x8 -> 8x8 float32"
MEASURED = PLAIN | {
    "devices": [row | {"address": f"cuda:{i}"} for i, row in enumerate(PLAIN["devices"])],
    "links": [PLAIN["links"][0] | {"via": "host"}],
    "exec_s": {MATMUL: 3e-6, "relu 8 -> 8 float32 #0123": [1, 2e-6]},
    "contention": {"elementwise": 1.3, "reduction": 2.0},
    "extra_transfer_s": [[1e3, 2e-5], [1e6, 0.0]],
}


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "machine"
        path.write_text(text if isinstance(text, str) else json.dumps(text), "utf-8")
        return path

    return write


def bandwidth(topology, source, target):
    return topology.links[topology.route[source, target]].bandwidth_bytes_per_s


@pytest.mark.parametrize("name", PRESETS)
def test_presets_load_by_name_and_survive_their_file(name, tmp_path):
    topology = read_topology(name)
    assert topology == Topology.preset(name)
    assert topology.name == name
    assert topology.description
    write_topology(topology, tmp_path / "machine.json")
    assert read_topology(tmp_path / "machine.json") == topology
    assert read_topology(str(tmp_path / "machine.json")) == topology


def test_p100x4_has_a_link_of_its_own_for_every_ordered_pair():
    topology = preset("p100x4")
    assert [d.name for d in topology.devices] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert {d.memory_bytes for d in topology.devices} == {16e9}
    assert {link.bandwidth_bytes_per_s for link in topology.links[:12]} == {10e9}
    assert topology.links[topology.route[1, 3]].name == "nvlink gpu1→gpu3"
    assert sorted(topology.route[topology.route >= 0].tolist()) == list(range(12))
    assert topology.host == Host(dispatch_s=30e-6, completion_s=0.74e-3, ahead=8)


@pytest.mark.parametrize(
    ("name", "speeds"),
    [
        ("p100x4", [12e9] * 4),
        ("p100x4-8gb", [12e9] * 4),
        ("v100x8", [12e9] * 8),
        ("a100x2-t4x2", [24e9, 24e9, 12e9, 12e9]),
    ],
)
def test_gpus_have_a_link_to_the_host_each_after_those_between_devices(name, speeds):
    topology = preset(name)
    links = [topology.links[i] for i in topology.host_links]
    assert topology.has_host_links
    assert topology.host_links == tuple(range(topology.route.max() + 1, topology.num_links))
    assert [link.bandwidth_bytes_per_s for link in links] == speeds
    assert {(link.latency_s, link.lanes) for link in links} == {(10e-6, 1)}
    assert [link.name.split(" ")[1] for link in links] == [d.name for d in topology.devices]


@pytest.mark.parametrize("name", ["cpu2", "reference:4"])
def test_no_link_to_the_host_where_memory_is_shared_or_costs_are_given(name):
    assert preset(name).host_links == ()
    assert not preset(name).has_host_links


def test_p100x4_8gb_differs_in_its_memory():
    assert {d.memory_bytes for d in preset("p100x4-8gb").devices} == {8e9}


@pytest.mark.parametrize(("a", "b", "speed"), [(0, 2, 13.2e9), (0, 1, 6.6e9), (0, 5, 1.65e9)])
def test_v100x8_has_three_speeds_in_both_directions(a, b, speed):
    topology = preset("v100x8")
    assert bandwidth(topology, a, b) == bandwidth(topology, b, a) == speed
    assert topology.route[a, b] != topology.route[b, a]


def test_v100x8_has_two_groups():
    assert [d.group for d in preset("v100x8").devices] == ["left"] * 4 + ["right"] * 4


def test_a100x2_t4x2_has_unequal_devices_and_a_shared_bus():
    topology = preset("a100x2-t4x2")
    assert [d.name for d in topology.devices] == ["a100-0", "a100-1", "t4-0", "t4-1"]
    assert topology.devices[0].flops_per_s["float32"] > topology.devices[2].flops_per_s["float32"]
    assert [link.name for link in topology.links[:3]] == [
        "nvlink a100-0→a100-1",
        "nvlink a100-1→a100-0",
        "pcie",
    ]
    assert np.count_nonzero(topology.route == 2) == 10
    assert topology.links[2].lanes == 2


def test_cpu2_shares_one_memory():
    topology = preset("cpu2")
    assert topology.route.tolist() == [[-1, 0], [0, -1]]


def test_reference_has_equal_devices_that_never_wait_for_a_link():
    topology = read_topology("reference:3")
    assert topology.devices == (Device("device0"), Device("device1"), Device("device2"))
    assert topology.links == (Link("any", bandwidth_bytes_per_s=inf, latency_s=0, lanes=0),)
    assert topology.route.tolist() == [[-1, 0, 0], [0, -1, 0], [0, 0, -1]]
    assert topology.host == Host(dispatch_s=0, completion_s=0)
    assert {(d.slots, d.memory_bytes) for d in topology.devices} == {(1, inf)}


def test_reference_of_one_device_has_no_link():
    assert preset("reference:1").links == ()


@pytest.mark.parametrize("count", ["0", "x", "", "-1", "1.5", "1025", "9" * 5000, "٣", " 4"])
def test_reference_of_no_sensible_number_is_refused(count):
    with pytest.raises(TopologyError, match="is not a number of devices") as caught:
        read_topology(f"reference:{count}")
    assert "write reference:4" in caught.value.hint


def test_a_topology_without_speeds_can_be_written_and_read(tmp_path):
    write_topology(preset("reference:2"), tmp_path / "machine.json")
    assert read_topology(str(tmp_path / "machine.json")) == preset("reference:2")


@pytest.mark.parametrize(
    ("device", "link", "host", "message"),
    [
        ({"slots": 0}, {}, {}, "device `d`: slots is 0"),
        ({"memory_bytes": nan}, {}, {}, "device `d`: memory_bytes is nan"),
        ({"flops_per_s": {"float32": -1.0}}, {}, {}, "device `d`: flops_per_s.float32 is -1"),
        ({"launch_s": inf}, {}, {}, "device `d`: launch_s is inf"),
        ({}, {"bandwidth_bytes_per_s": 0.0}, {}, "link `l`: bandwidth_bytes_per_s is 0"),
        ({}, {"lanes": -1}, {}, "link `l`: lanes is -1"),
        ({}, {"via": "air"}, {}, "link `l`: via is `air`, must be direct or host"),
        ({}, {}, {"dispatch_s": -1.0}, "host: dispatch_s is -1"),
    ],
)
def test_a_topology_made_in_code_is_checked_too(device, link, host, message):
    with pytest.raises(TopologyError, match=message):
        Topology("bad", (Device("d", **device),), (Link("l", **link),), [[-1]], Host(**host))


def test_an_unknown_preset_gets_a_suggestion():
    with pytest.raises(UnknownNameError, match="no topology named `p100x`") as caught:
        read_topology("p100x")
    assert caught.value.hint.startswith("did you mean `p100x4`?")
    assert "reference:N" in caught.value.hint


def test_a_missing_file_is_named():
    with pytest.raises(FormatError, match=r"no file `nowhere\.toml`"):
        read_topology("nowhere.toml")


def test_toml_reads_in_full(file):
    topology = read_topology(file(PAIR))
    assert topology == Topology(
        name="pair",
        devices=(
            Device(
                name="big",
                flops_per_s={"float16": 4e12, "float32": 2e12},
                memory_bytes_per_s=1e11,
                memory_bytes=16e9,
                slots=2,
                launch_s=5e-6,
                group="left",
            ),
            Device("small", dict.fromkeys(("float16", "float32", "float64"), 1e12), 1e10),
        ),
        links=(Link("bus big→small", 1e9, 1e-5, 0), Link("bus small→big", 1e9, 1e-5, 0)),
        route=np.array([[-1, 0], [1, -1]]),
        host=Host(1e-6, 2e-6),
        description="two unequal devices",
    )


def test_addresses_ways_and_measured_seconds_are_read(file):
    topology = read_topology(file(MEASURED))
    assert [d.address for d in topology.devices] == ["cuda:0", "cuda:1"]
    assert {link.via for link in topology.links} == {"host"}
    assert topology.exec_s == {MATMUL: (3e-6, 3e-6), "relu 8 -> 8 float32 #0123": (1.0, 2e-6)}
    assert topology.contention == {"elementwise": 1.3, "reduction": 2.0}
    assert topology != topology.without_contention()
    assert topology.without_contention() == replace(topology, contention={})


def test_measured_seconds_can_be_written_in_toml(file):
    text = PAIR + f'\n[exec_s]\n"{MATMUL}" = [1e-3, 2e-3]\n"fill -> 8 float32" = 1e-4\n'
    topology = read_topology(file(text))
    assert topology.exec_s == {MATMUL: (1e-3, 2e-3), "fill -> 8 float32": (1e-4, 1e-4)}
    assert topology.devices == read_topology(file(PAIR)).devices


def test_what_was_not_given_is_not_written(tmp_path):
    keys = ("address", "via", "exec_s", "contention", "extra_transfer_s")
    text = topology_to_json(preset("p100x4"))
    assert [key for key in keys if f'"{key}"' in text] == []


def test_seconds_that_are_the_same_on_all_devices_are_written_once(file):
    document = json.loads(topology_to_json(read_topology(file(MEASURED))))
    assert document["exec_s"] == MEASURED["exec_s"]
    assert document["contention"] == MEASURED["contention"]
    assert document["extra_transfer_s"] == MEASURED["extra_transfer_s"]
    assert document["version"] == 1


def test_json_reads_and_left_out_fields_get_defaults(file):
    topology = read_topology(file(PLAIN))
    assert topology.host == Host(1e-6, 0)
    assert topology.devices[0].memory_bytes == inf
    assert (topology.devices[0].slots, topology.devices[0].launch_s) == (1, 0)
    assert (topology.links[0].latency_s, topology.links[0].lanes) == (0, 1)
    assert (topology.devices[0].address, topology.links[0].via, topology.exec_s) == ("", "", {})
    assert topology.contention == {}


def test_count_and_first_number_the_devices(file):
    row = {"name": "g", **SPEEDS}
    devices = [row | {"count": 2}, row | {"count": 1, "first": 7}]
    changes = {"devices": devices, "links.0.pairs": "others"}
    topology = read_topology(file(strategies.changed(PLAIN, changes)))
    assert [d.name for d in topology.devices] == ["g0", "g1", "g7"]


def test_others_are_the_pairs_no_other_entry_names(file):
    row = {"bandwidth_bytes_per_s": 1, "shared": True}
    links = [{"name": "rest", "pairs": "others", **row}]
    links += [{"name": "up", "pairs": [["a", "b"]], "one_way": True, **row}]
    topology = read_topology(file(PLAIN | {"links": links}))
    assert [link.name for link in topology.links] == ["up", "rest"]
    assert topology.route.tolist() == [[-1, 0], [1, -1]]


def test_links_to_the_host_are_shared_or_one_for_each_device(file):
    bus = PLAIN["links"][0]
    pcie = {"name": "pcie", "bandwidth_bytes_per_s": 2e9}
    each = read_topology(file(PLAIN | {"links": [pcie | {"host": "others"}, bus]}))
    assert [link.name for link in each.links] == ["bus a→b", "bus b→a", "pcie a", "pcie b"]
    assert each.host_links == (2, 3)
    shared = pcie | {"host": ["b", "a"], "shared": True}
    assert read_topology(file(PLAIN | {"links": [bus, shared]})).host_links == (2, 2)
    both = bus | {"host": "others", "shared": True}
    assert read_topology(file(PLAIN | {"links": [both]})).host_links == (0, 0)
    named = [pcie | {"host": "others"}, bus, pcie | {"name": "fast", "host": ["a"]}]
    topology = read_topology(file(PLAIN | {"links": named}))
    assert [topology.links[i].name for i in topology.host_links] == ["fast a", "pcie b"]


BAD_HOSTS = [
    ("all", 'must be a list of device names or "others"'),
    ([1], 'must be a list of device names or "others"'),
    (["a", "c"], r"\[1\]: no device named `c`"),
    (["a", "a"], "`a` has a link to the host already"),
    (["a"], "no link between the host and `b`"),
]


@pytest.mark.parametrize(("host", "message"), BAD_HOSTS)
def test_a_bad_link_to_the_host_is_named(file, host, message):
    path = file(PLAIN | {"links": [*PLAIN["links"], {"name": "pcie", "host": host}]})
    with pytest.raises(TopologyError, match=message):
        read_topology(path)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ((0,), "host_links has 1 entries for 2 devices"),
        ((0, 1), "device `b`: the link to the host is 1"),
        ((-1, 0), "device `a`: the link to the host is -1"),
        ((0, 0.0), "device `b`: the link to the host is 0.0"),
        ((True, 0), "device `a`: the link to the host is True"),
    ],
)
def test_links_to_the_host_given_in_code_are_checked(links, message):
    pair = (Device("a"), Device("b"))
    with pytest.raises(TopologyError, match=message):
        Topology("pair", pair, (Link("bus"),), [[-1, 0], [0, -1]], host_links=links)


memories = st.just(inf) | strategies.rates


@st.composite
def measured_topologies(draw):
    topology = draw(strategies.topologies(memory_bytes=memories))
    size, names = topology.num_devices, st.sampled_from(["", "cpu:0", "cuda:0/1of4"])
    own = st.lists(strategies.seconds, min_size=size, max_size=size).map(tuple)
    alike = strategies.seconds.map(lambda one: (one,) * size)
    return replace(
        topology,
        devices=tuple(replace(d, address=draw(names)) for d in topology.devices),
        links=tuple(
            replace(link, via=draw(st.sampled_from(["", "direct", "host"])))
            for link in topology.links
        ),
        exec_s=draw(st.dictionaries(st.text(max_size=8), own | alike, max_size=3)),
    )


@given(topology=measured_topologies())
def test_a_topology_survives_a_round_trip(tmp_path_factory, topology):
    path = tmp_path_factory.getbasetemp() / "round-trip.json"
    write_topology(topology, path)
    assert read_topology(path) == topology


def test_a_large_topology_with_one_bus_survives_a_round_trip(tmp_path):
    route = np.zeros((256, 256), np.int64)
    np.fill_diagonal(route, -1)
    devices = tuple(Device(f"d{i}", {"float32": 1.0}, 1.0) for i in range(256))
    topology = Topology("large", devices, (Link("bus", 1.0),), route)
    write_topology(topology, tmp_path / "large.json")
    assert read_topology(tmp_path / "large.json") == topology


BAD_FIELDS = [
    ({"name": 1}, "topology.name must be text, not 1"),
    ({"name": ...}, "key `name` is missing"),
    ({"description": None}, "topology.description must be text"),
    ({"colour": "red"}, "unknown key `colour`"),
    ({"version": 2}, "`version` is 2"),
    ({"format": "doppler-graph"}, "`format` is 'doppler-graph'"),
    ({"host": []}, "host must be an object, not list"),
    ({"host.dispatch_s": -1}, "host.dispatch_s must be a finite number ≥ 0, not -1"),
    ({"host.completion_s": nan}, "host.completion_s must be a finite number ≥ 0, not nan"),
    ({"host.speed": 1}, "host: unknown key `speed`"),
    ({"devices": ...}, "key `devices` is missing"),
    ({"devices": [], "links": []}, "topology `pair` has no devices"),
    ({"devices": {}}, "`devices` must be a list of tables"),
    ({"devices.0": 5}, r"devices\[0\] must be an object, not int"),
    ({"devices.1.name": "a", "links.0.pairs": "others"}, "two devices are named `a`"),
    ({"devices.1.name": None}, r"devices\[1\].name must be text, not None"),
    ({"devices.1.memory_bytes_per_s": 0}, r"devices\[1\].memory_bytes_per_s must be .* > 0, not 0"),
    ({"devices.1.memory_bytes": -1}, r"devices\[1\].memory_bytes must be .* > 0, not -1"),
    ({"devices.1.memory_bytes": 10**400}, r"devices\[1\].memory_bytes must be a finite number > 0"),
    ({"devices.1.memory_bytes": inf}, r"devices\[1\].memory_bytes must be a finite number"),
    ({"devices.1.slots": -1}, r"devices\[1\].slots must be a whole number ≥ 1, not -1"),
    ({"devices.1.slots": 0}, r"devices\[1\].slots must be a whole number ≥ 1, not 0"),
    ({"devices.1.slots": 1.0}, r"devices\[1\].slots must be a whole number ≥ 1, not 1.0"),
    ({"devices.1.slots": True}, r"devices\[1\].slots must be a whole number ≥ 1, not True"),
    ({"devices.1.slots": 2**40}, r"devices\[1\].slots must be a whole number"),
    ({"devices.1.launch_s": "1"}, r"devices\[1\].launch_s must be a finite number ≥ 0, not '1'"),
    ({"devices.1.launch_s": True}, r"devices\[1\].launch_s must be a finite number ≥ 0, not True"),
    ({"devices.1.group": 1}, r"devices\[1\].group must be text"),
    ({"devices.1.count": 0}, r"devices\[1\].count must be a whole number ≥ 1"),
    ({"devices.1.count": 2000}, "1026 devices; at most 1024 are supported"),
    ({"devices.1.count": 1, "devices.1.first": -1}, r"devices\[1\].first must be a whole number"),
    ({"devices.1.flops_per_s": "fast"}, r"devices\[1\].flops_per_s must be a finite number > 0"),
    ({"devices.1.flops_per_s": {"int8": 1}}, r"devices\[1\].flops_per_s: unknown key `int8`"),
    ({"devices.1.flops_per_s": {"float16": 0}}, r"devices\[1\].flops_per_s.float16 must be"),
    ({"links": ...}, "no link from `a` to `b`"),
    ({"links": "bus"}, "`links` must be a list of tables"),
    ({"links.0": []}, r"links\[0\] must be an object, not list"),
    ({"links.0.name": 3}, r"links\[0\].name must be text"),
    ({"links.0.bandwidth_bytes_per_s": 0}, r"links\[0\].bandwidth_bytes_per_s must be .* > 0"),
    ({"links.0.bandwidth_bytes_per_s": nan}, r"links\[0\].bandwidth_bytes_per_s must .*, not nan"),
    ({"links.0.latency_s": -1e-6}, r"links\[0\].latency_s must be a finite number ≥ 0"),
    ({"links.0.lanes": -1}, r"links\[0\].lanes must be a whole number ≥ 0, not -1"),
    ({"links.0.shared": 1}, r"links\[0\].shared must be true or false, not 1"),
    ({"links.0.one_way": "no"}, r"links\[0\].one_way must be true or false"),
    ({"links.0.one_way": True}, "no link from `b` to `a`"),
    ({"links.0.pairs": ...}, r"links\[0\]: key `pairs` is missing"),
    ({"links.0.pairs": "all"}, r'links\[0\].pairs must be a list of pairs or "others"'),
    ({"links.0.pairs": []}, "no link from `a` to `b`"),
    ({"links.0.pairs.0": "ab"}, r"links\[0\].pairs\[0\] must be two device names, not 'ab'"),
    ({"links.0.pairs.0": ["a", 1]}, r"links\[0\].pairs\[0\] must be two device names"),
    ({"links.0.pairs.0": ["a", "c"]}, r"links\[0\].pairs\[0\]: no device named `c`"),
    ({"links.0.pairs.0": ["a", "a"]}, r"links\[0\].pairs\[0\] links `a` to itself"),
    ({"links.0.pairs": [["a", "b"]] * 2}, r"links\[0\].pairs: `a` → `b` has a link already"),
    ({"links.0.pairs": [["a", "b"], ["b", "a"]]}, r"links\[0\].pairs: `b` → `a` has a link"),
    ({"devices.1.address": 0}, r"devices\[1\].address must be text, not 0"),
    ({"links.0.via": 1}, r"links\[0\].via must be text, not 1"),
    ({"links.0.via": "air"}, r"links\[0\].via must be direct or host, not 'air'"),
    ({"exec_s": [1]}, "exec_s must be an object, not list"),
    ({"extra_transfer_s": 2}, "extra_transfer_s must be a list, not int"),
    ({"extra_transfer_s": [[1]]}, r"extra_transfer_s\[0\] must be a list of bytes and seconds"),
    ({"extra_transfer_s": [[1, -1]]}, r"extra_transfer_s\[0\]"),
    ({"extra_transfer_s": [[2, 0], [1, 0]]}, "extra_transfer_s must be in the order of its bytes"),
    ({"contention": 2}, "contention must be an object, not int"),
    ({"contention": {"conv": 2}}, "contention: unknown key `conv`"),
    ({"contention": {"matmul": 0.9}}, "contention.matmul is 0.9, must be at least 1"),
    ({"contention": {"matmul": "2"}}, "contention.matmul must be a finite number > 0, not '2'"),
    ({"exec_s": {"relu": -1}}, r'exec_s\["relu"\] must be a finite number ≥ 0, not -1'),
    ({"exec_s": {"relu": "1"}}, r'exec_s\["relu"\] must be a finite number ≥ 0'),
    ({"exec_s": {"relu": inf}}, r'exec_s\["relu"\] must be a finite number ≥ 0'),
    ({"exec_s": {"relu": None}}, r'exec_s\["relu"\] must be a finite number ≥ 0, not None'),
    ({"exec_s": {"relu": [1]}}, r'exec_s\["relu"\] has 1 numbers for 2 devices'),
    ({"exec_s": {"relu": [1, 2, 3]}}, r'exec_s\["relu"\] has 3 numbers for 2 devices'),
    ({"exec_s": {"relu": [1, nan]}}, r'exec_s\["relu"\]\[1\] must be a finite number ≥ 0'),
    ({"exec_s": {"relu": [1, [2]]}}, r'exec_s\["relu"\]\[1\] must be a finite number ≥ 0'),
]


@pytest.mark.parametrize(("changes", "message"), BAD_FIELDS)
def test_a_bad_field_is_named(file, changes, message):
    path = file(strategies.changed(PLAIN, changes))
    with pytest.raises((TopologyError, FormatError), match=f"`{path}`: .*{message}"):
        read_topology(path)


def test_a_pair_in_two_links_is_refused(file):
    (link,) = PLAIN["links"]
    with pytest.raises(TopologyError, match=r"links\[1\].pairs: `a` → `b` has a link already"):
        read_topology(file(PLAIN | {"links": [link, link]}))


@pytest.mark.parametrize("pairs", ["others", []])
def test_a_link_that_serves_no_pair_is_checked_too(file, pairs):
    links = [*PLAIN["links"], {"name": "spare", "bandwidth_bytes_per_s": -1, "pairs": pairs}]
    with pytest.raises(TopologyError, match=r"links\[1\].bandwidth_bytes_per_s must be"):
        read_topology(file(PLAIN | {"links": links}))


BAD_TEXTS = {
    "unclosed string": ('name = "pair', "is not valid TOML"),
    "truncated JSON": ('{"format": "doppler-topology", ', "is not valid JSON"),
    "5000 digits": ("version = " + "1" * 5000, "is not valid TOML: Exceeds the limit"),
    "deeply nested": ("a = " + "[" * 100_000, "is not valid TOML"),
    "empty": ("", "is empty"),
    "a date": ("format = 2020-01-01", "`format` is datetime.date"),
}


@pytest.mark.parametrize(("text", "message"), BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_a_file_that_is_no_topology_is_named_with_the_reason(file, text, message):
    path = file(text)
    with pytest.raises(FormatError, match=f"`{path}`:? {message}"):
        read_topology(path)


def test_nan_in_toml_is_refused(file):
    with pytest.raises(TopologyError, match=r"links\[0\].latency_s must be a finite number ≥ 0"):
        read_topology(file(PAIR.replace("latency_s = 1e-5", "latency_s = nan")))


DEVICES = (Device("a"), Device("b"))
BAD_ROUTES = [
    (DEVICES, [[-1, 0]], r"route has shape \(1, 2\), expected \(2, 2\)"),
    (DEVICES, [[-1, 0], [-1, -1]], "no link from `b` to `a`"),
    (DEVICES, [[-1, 0], [1, -1]], "no link from `b` to `a`"),
    (DEVICES, [[0, 0], [0, -1]], "`a` has a link to itself"),
    ((), np.zeros((0, 0)), "topology `made` has no devices"),
    ((Device("a"), Device("a")), [[-1, 0], [0, -1]], "two devices are named `a`"),
]


@pytest.mark.parametrize(("devices", "route", "message"), BAD_ROUTES)
def test_a_topology_made_in_code_is_checked(devices, route, message):
    with pytest.raises(TopologyError, match=message):
        Topology("made", devices, (Link("bus"),), route)


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (1.0, r'exec_s\["relu"\] is 1.0, must be 2 numbers, one per device'),
        ((1.0,), r'exec_s\["relu"\] is \(1.0,\), must be 2 numbers'),
        ([1.0, 1.0], r'exec_s\["relu"\] is \[1.0, 1.0\], must be 2 numbers'),
        ((1.0, -1.0), r'exec_s\["relu"\] is -1.0, must be finite and not negative'),
        ((nan, 1.0), r'exec_s\["relu"\] is nan, must be finite'),
        ((1.0, inf), r'exec_s\["relu"\] is inf, must be finite'),
        ((1.0, "1"), r'exec_s\["relu"\] is \'1\', must be finite'),
    ],
)
def test_measured_seconds_given_in_code_are_checked(seconds, message):
    with pytest.raises(TopologyError, match=message):
        Topology("made", DEVICES, (Link("bus"),), [[-1, 0], [0, -1]], exec_s={"relu": seconds})


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"conv": 2.0}, "contention has no family of kernels `conv`"),
        ({"matmul": 0.5}, "contention.matmul is 0.5, must be at least 1"),
        ({"matmul": nan}, "contention.matmul is nan, must be finite"),
    ],
)
def test_contention_given_in_code_is_checked(factors, message):
    with pytest.raises(TopologyError, match=message):
        Topology("made", DEVICES, (Link("bus"),), [[-1, 0], [0, -1]], contention=factors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": (Device("a", slots=1025), Device("b"))}, "device `a`: slots is 1025"),
        ({"links": (Link("bus", lanes=2**31 - 1),)}, "link `bus`: lanes is 2147483647"),
        ({"links": (Link("bus", lanes=1024),) * 4096}, "4194306 slots and lanes; at most 4194304"),
    ],
)
def test_there_is_no_room_for_that_many(changes, message):
    pair = Topology("pair", DEVICES, (Link("bus", lanes=1024),), [[-1, 0], [0, -1]])
    with pytest.raises(TopologyError, match=message):
        replace(pair, **changes)


def test_topologies_differ_where_a_field_does():
    pair = Topology("pair", DEVICES, (Link("bus"),), [[-1, 0], [0, -1]])
    others = [
        Topology("pair", (Device("a"), Device("b", slots=2)), pair.links, pair.route),
        Topology("pair", (Device("a"), Device("b", {"float32": 1.0})), pair.links, pair.route),
        Topology("pair", DEVICES, (Link("bus", lanes=2),), pair.route),
        Topology("pair", DEVICES, (Link("bus"), Link("bus")), [[-1, 0], [1, -1]]),
        Topology("pair", DEVICES, pair.links, pair.route, Host(1.0)),
        Topology("pair", (Device("a"), Device("b", address="cpu:0")), pair.links, pair.route),
        Topology("pair", DEVICES, (Link("bus", via="host"),), pair.route),
        replace(pair, host_links=np.array([0, 0])),
        replace(pair, exec_s={"relu": (1.0, 1.0)}),
    ]
    assert pair == Topology("pair", DEVICES, (Link("bus"),), pair.route)
    assert [other for other in others if other == pair] == []
    assert replace(pair, exec_s={"relu": (1.0, 1.0)}) == others[-1] != others[-2]
    assert replace(pair, exec_s={"relu": (1.0, 2.0)}) != others[-1]
    assert not pair.route.flags.writeable


@settings(max_examples=examples(1000))
@given(data=st.data())
def test_a_broken_file_raises_nothing_but_our_errors(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "broken-topology.json"
    texts = [json.dumps(PLAIN), json.dumps(MEASURED), topology_to_json(preset("cpu2"))]
    whole = data.draw(st.sampled_from(texts))
    path.write_text(data.draw(strategies.broken_files(whole)), "utf-8")
    try:
        topology = read_topology(path)
    except DopplerError:
        return
    write_topology(topology, path)
    assert read_topology(path) == topology


@settings(max_examples=examples(300))
@given(data=st.data())
def test_a_broken_toml_file_raises_nothing_but_our_errors(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "broken-topology.toml"
    path.write_text(data.draw(strategies.edited(PAIR)), "utf-8")
    try:
        read_topology(path)
    except DopplerError:
        return


def test_uniform_is_a_machine_of_equal_devices_with_a_link_for_every_ordered_pair(tmp_path):
    topology = Topology.uniform(devices=3, flops_per_s=1e12, bandwidth_bytes_per_s=1e9)
    assert [d.name for d in topology.devices] == ["device0", "device1", "device2"]
    assert all(dict(d.flops_per_s) == dict.fromkeys(DTYPE_CLASSES, 1e12) for d in topology.devices)
    assert topology.num_links == 6
    assert sorted(topology.route[~np.eye(3, dtype=bool)].tolist()) == list(range(6))
    assert topology.links[topology.route[2, 0]].name == "link device2→device0"
    assert {link.bandwidth_bytes_per_s for link in topology.links} == {1e9}
    write_topology(topology, tmp_path / "t.json")
    assert read_topology(tmp_path / "t.json") == topology


def test_uniform_takes_the_options_of_devices_and_links():
    topology = Topology.uniform(
        np.int64(2),
        flops_per_s=[{"float16": 2e12}, np.float32(1e12)],
        bandwidth_bytes_per_s=np.float64(1e9),
        latency_s=1e-6,
        lanes=np.int8(0),
        memory_bytes_per_s=1e11,
        memory_bytes=8e9,
        slots=2,
        name="odd pair",
    )
    first, second = topology.devices
    assert topology.name == "odd pair"
    assert first.flops_per_s == {"float16": 2e12}
    assert set(second.flops_per_s) == set(DTYPE_CLASSES)
    assert (first.memory_bytes_per_s, first.memory_bytes, first.slots) == (1e11, 8e9, 2)
    assert (topology.links[0].latency_s, topology.links[0].lanes) == (1e-6, 0)


def test_uniform_has_a_link_between_the_host_and_each_device_where_it_is_asked_for():
    plain = Topology.uniform(2, bandwidth_bytes_per_s=1e9)
    topology = Topology.uniform(
        2, bandwidth_bytes_per_s=1e9, host_bandwidth_bytes_per_s=2e9, host_latency_s=1e-6
    )
    assert not plain.has_host_links
    assert topology.links[:2] == plain.links
    assert topology.links[2:] == tuple(Link(f"host device{i}", 2e9, 1e-6) for i in range(2))
    assert topology.host_links == (2, 3)


def test_uniform_without_options_has_no_limits():
    topology = Topology.uniform()
    assert topology.num_devices == 2
    assert topology.devices[0] == Device("device0")
    assert topology.links[0] == Link("link device0→device1")
    assert Topology.uniform(1).num_links == 0
    assert Topology.uniform(2, flops_per_s=np.array([1.0, 2.0])).devices[1].flops_per_s == (
        dict.fromkeys(DTYPE_CLASSES, 2.0)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 0}, "devices is 0, must be a whole number from 1 to 1024"),
        ({"devices": -1}, "devices is -1, must be a whole number from 1 to 1024"),
        ({"devices": 1025}, "devices is 1025, must be a whole number from 1 to 1024"),
        ({"devices": 2.0}, "devices is 2.0, must be a whole number"),
        ({"devices": True}, "devices is True, must be a whole number"),
        ({"devices": "2"}, "devices is '2', must be a whole number"),
        ({"flops_per_s": -1.0}, "device `device0`: flops_per_s.float16 is -1.0, must be > 0"),
        ({"flops_per_s": [1.0]}, "flops_per_s has 1 entries for 2 devices"),
        ({"flops_per_s": [1.0, 0]}, "device `device1`: flops_per_s.float16 is 0.0, must be > 0"),
        ({"flops_per_s": "fast"}, "flops_per_s.float16 is 'fast', must be > 0"),
        ({"flops_per_s": {"int8": 1.0}}, "device `device0`: flops_per_s has no dtype class `int8`"),
        ({"flops_per_s": inf}, "flops_per_s.float16 is inf, must be > 0 and finite"),
        ({"bandwidth_bytes_per_s": 0}, "bandwidth_bytes_per_s is 0.0, must be > 0"),
        ({"bandwidth_bytes_per_s": True}, "bandwidth_bytes_per_s is True, must be > 0"),
        ({"latency_s": -1}, "latency_s is -1.0, must be finite and not negative"),
        ({"latency_s": nan}, "latency_s is nan, must be finite and not negative"),
        ({"lanes": -1}, "lanes is -1, must be a whole number ≥ 0"),
        ({"lanes": 1.5}, "lanes is 1.5, must be a whole number ≥ 0"),
        ({"slots": 0}, "slots is 0, must be a whole number ≥ 1"),
        ({"memory_bytes": 0}, "memory_bytes is 0.0, must be > 0"),
        ({"memory_bytes_per_s": -1}, "memory_bytes_per_s is -1.0, must be > 0"),
        ({"name": 3}, "the topology's name must be text, not 3"),
        ({"host_bandwidth_bytes_per_s": -1}, "bandwidth_bytes_per_s is -1.0, must be > 0"),
        ({"host_latency_s": 1.0}, "host_latency_s needs host_bandwidth_bytes_per_s"),
    ],
)
def test_uniform_says_what_is_wrong(options, message):
    with pytest.raises(TopologyError, match=message):
        Topology.uniform(**options)
