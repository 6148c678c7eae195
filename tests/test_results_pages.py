"""Pages of results say what the committed data say.

Every figure in the text of a page is one that the tables of the page show, rounded, unless it
follows from the data by a formula (`CLAIMS`) or is no result of ours (`GIVEN`).
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from math import ceil
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import FOLDER, scripts

pytest.importorskip("torch")

RESULTS = FOLDER / "results"
PAGES = FOLDER.parent / "docs" / "results"
TABLE = r"<!-- table: (\S+) -->"
FIGURE = r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?"
NO_TEXT = r"(?ms)^```.*?^```|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)|^#[^\n]*$"  # code, links, headings
WITH_TABLES = sorted(path.stem for path in PAGES.glob("*.md") if re.search(TABLE, path.read_text()))

# Figures that are no results of ours: sizes, budgets and other settings, and those of the paper.
GIVEN = {
    "devices": "46.3 200 768",
    "learning": "25 120 260",
    "memory": "2.5 7.5 18.6 49.6",
    "models": "2,048",
    "paper": "450",
    "placers": "0.01 60 64 100",
    "rivals": "48 128 256",
    "serving": "1.5 20 300 1,500 2,500",
    "speed": "0.68 3.11 6.2 64",
    "zero-shot": "0.01 60 100 128 1030 1200 60,000",
}


@pytest.fixture(scope="module")
def shown() -> Iterator[Callable[[str], str]]:
    """What the script of a file of results prints for it."""
    measured = tomllib.loads((RESULTS / "measured.toml").read_text("utf-8"))
    with scripts() as printed:

        @cache
        def show(name: str) -> str:
            script = measured[name]["script"].removesuffix(".py")
            return printed(script, ("show", str(RESULTS / f"{name}.jsonl")))[0]

        yield show


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text("utf-8")


def figures(text: str) -> list[str]:
    return re.findall(FIGURE, text)


def value(figure: str) -> float:
    return float(figure.replace(",", ""))


def is_among(figure: str, known: Any) -> bool:
    """Whether one of the known numbers is this one when it is rounded."""
    half = 0.5 * 10.0 ** -len(figure.partition(".")[2])
    return bool((np.abs(known - value(figure)) <= half * 1.0001).any())


def numbers(text: str) -> Any:
    """All numbers of a text; of ratios such as 1.238 also the percents above 1."""
    found = figures(text)
    ratios = [value(f) for f in found if len(f.partition(".")[2]) >= 3]
    return np.array([*map(value, found), *(100 * abs(ratio - 1) for ratio in ratios)])


def rows(name: str) -> list[dict[str, Any]]:
    lines = (RESULTS / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def table(name: str, title: str) -> list[list[str]]:
    return next(row["rows"] for row in rows(name) if row["name"] == title)


def on_placers(shown: Callable[[str], str]) -> list[str]:
    found = [[value(figures(cell)[0]) for cell in row[5:]] for row in table("placers", "search")]
    better = [100 * (1 - search / instant) for instant, search, _ in found]
    gaps = [gap for _, _, gap in found[:4]]
    ratios = [float(row[4]) for row in table("placers", "moves")]
    late = [abs(float(row[5].split()[0])) for row in table("placers", "long")]
    assert min(better) >= 0
    assert max(late) < 1
    cells = [
        line.split("|")
        for line in shown("auto-members").splitlines()
        if "| +" in line or "| -" in line
    ]
    near = sum(value(re.findall(r"[-+]?\d+\.\d", cell[5])[0].lstrip("+")) <= 1 for cell in cells)
    return [
        f"in {near} of {len(cells)} cells",
        f"and up to {max(better):.0f} % better",
        f"On `p100x4-first-fit` the result is {min(gaps):.1f} to {max(gaps):.0f} % above",
        f"costs {min(ratios)} to {max(ratios)} times less than a simulation",
    ]


def on_speed() -> list[str]:
    found = table("simulator", "simpy")
    per_s = [value(row[6]) for row in found]
    times = [int(figures(cell)[1]) for row in found for cell in row[2:4]]
    return [
        f"evaluates {min(per_s):,.0f} to {max(per_s):,.0f} assignments per second and core",
        f"{min(times)} to {max(times)} times as many as a SimPy model",
    ]


def on_learning(shown: Callable[[str], str]) -> list[str]:
    lines = shown("learning").splitlines()
    quality = lines[next(i for i, line in enumerate(lines) if "### Quality" in line) :][4:10]
    run, greedy = (
        [value(figures(line.split("|")[column])[0]) for line in quality] for column in (4, 5)
    )
    passes = {"once per episode": 0.0, "once per step": 0.0}
    for way in passes:
        last = next(line for line in lines if line.startswith(f"| {way}")).split("|")[5]
        passes[way] = value(figures(last)[0])
    return [
        f"finds assignments within {max(run):.1f} % of the best known",
        f"ends {min(greedy[:4]):.1f} to {max(greedy[:4]):.1f} % above the best known on four",
        f"and {min(greedy[4:]):.0f} to {max(greedy[4:]):.0f} % on eight",
        f"makes {passes['once per episode'] / passes['once per step']:.0f} times fewer episodes",
    ]


SEARCHES = ("annealing", "auto", "cp-sat", "genetic", "local-search")
RIVALS = ("placeto", "placeto-pretrain", "gdp", "seq2seq")
GRAPHS = ("chainmm", "ffnn", "llama-block", "llama-layer")


def on_rivals() -> list[str]:
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows("rivals"):
        found.setdefault(tuple(row["job"].split("/")[:-1]), []).append(row)

    def mean(kind: str, graph: str, method: str, key: str = "policy") -> float:
        return float(np.mean([row[key] for row in found[kind, graph, method]]))

    def below(kind: str, others: tuple[str, ...], method: str = "doppler") -> list[float]:
        least = [min(mean(kind, graph, other) for other in others) for graph in GRAPHS]
        own = [mean(kind, graph, method) for graph in GRAPHS]
        return [100 * (1 - a / b) for a, b in zip(own, least, strict=True)]

    same, time = below("table", RIVALS), below("time", RIVALS)
    searched = [-100 * (1 - 1 / (1 - gain / 100)) for gain in below("table", ("annealing", "auto"))]
    episodes = [mean("time", graph, "placeto", "episodes") for graph in GRAPHS[1:]]
    heuristics = tuple(
        name
        for kind, graph, name in (key for key in found if key[0] == "table")
        if graph == "chainmm" and name not in {"doppler", *RIVALS, *SEARCHES}
    )
    ahead = below("table", heuristics)
    return [
        "{:.0f} % below the next best on ChainMM, and {:.0f}, {:.0f} and {:.0f} % below".format(
            *same
        ),
        f"by {time[0]:.1f} % on ChainMM and by {min(time[1:]):.0f} to {max(time):.0f} % on the",
        "completes {:.0f} to {:.0f} episodes on the larger graphs".format(
            *np.round([min(episodes), max(episodes)], -2)
        ),
        f"they end {ahead[2]:.1f} and {ahead[3]:.1f} % below the best of them, on ChainMM "
        f"{-ahead[0]:.1f} % above",
        f"on FFNN {-ahead[1]:.1f} % above",
        f"end {-max(searched):.1f} to {-min(searched):.1f} % below `doppler`'s samples",
    ]


def on_memory() -> list[str]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows("memory"):
        found.setdefault((row["placer"], row["workload"]), []).append(row)

    def over(key: str, placer: str, other: str, of: str = "auto") -> list[float]:
        """Percents by which one time is above another, on each graph."""

        def mean(name: str, graph: str, what: str) -> float:
            return float(np.mean([row[what] for row in found[name, graph]]))

        pairs = [(mean(of, graph, key), mean(placer, graph, other)) for graph in GRAPHS]
        return [100 * (a / b - 1) for a, b in pairs]

    anew, kept = over("narrow_ms", "auto", "wide_ms"), over("kept_ms", "auto", "wide_ms")
    narrow = [-each for each in over("narrow_ms", "critical-path", "narrow_ms")]
    wide = [-each for each in over("wide_ms", "critical-path", "wide_ms")]
    listed = [-each for each in over("narrow_ms", "enumerative", "narrow_ms")]
    return [
        "costs {:.0f} % on ChainMM, {:.0f} % on FFNN, {:.0f} % on the Llama block and {:.0f} % on "
        "the Llama layer".format(*anew),
        "costs {:.1f}, {:.0f}, {:.0f} and {:.0f} %".format(*kept),
        "`auto` is {:.0f}, {:.0f}, {:.0f} and {:.0f} % below with 8 GB".format(*narrow),
        f"it is {min(wide):.0f} to {max(wide):.0f} % below with 16 GB",
        f"it is {abs(min(listed)):.0f} to {max(listed):.1f} % below",
    ]


def on_models() -> list[str]:
    found = {r["job"].split("/")[1]: r for r in rows("models") if r["job"].startswith("sharded/")}
    ratios = {
        key: [row[key] / row["makespan_s"] for row in found.values()]
        for key in ("balanced_s", "columns_s", "hosts_s")
    }
    ahead = {key: sum(ratio > 1.001 for ratio in each) for key, each in ratios.items()}
    most, least = max(ratios["columns_s"]), min(ratios["columns_s"])
    llama, t5 = found["llama"], found["t5"]
    tokens = [
        row["ways"]["paper"] / row["ways"]["tokens"]
        for row in found.values()
        if row["best"] == "tokens"
    ]
    off = {
        whole: [
            100 * abs(row["predicted_ms"] / row["mean_ms"] - 1)
            for row in rows("models-engine-h200")
            if (row["graph"] == "whole") == whole
        ]
        for whole in (True, False)
    }
    assert len(found) == 10
    assert ahead["hosts_s"] == 9
    assert len(tokens) == 5
    return [
        f"ahead of Accelerate's split on {ahead['balanced_s']} of {len(found)} models, by up to "
        f"{max(ratios['balanced_s']):.2f} times",
        f"of tensor parallelism on {ahead['columns_s']} of {len(found)}, by {least:.2f} to "
        f"{most:.2f} times",
        f"Llama-2 7B takes {1e3 * llama['makespan_s']:.0f} ms, "
        f"{llama['single_s'] / llama['makespan_s']:.2f} times as fast as on one device and "
        f"{100 * (llama['makespan_s'] / llama['bound_s'] - 1):.1f} % above the bound",
        f"tensor parallelism takes {1e3 * llama['columns_s']:.0f} ms",
        f"take {min(tokens):.2f} to {max(tokens):.2f} times as long as those along the tokens",
        f"within {ceil(10 * max(off[True])) / 10} % for whole models and {min(off[False]):.1f} to "
        f"{max(off[False]):.1f} % for sharded ones",
        f"T5 ({1e3 * t5['hosts_s']:.1f} against {1e3 * t5['makespan_s']:.1f} ms)",
    ]


def on_serving() -> list[str]:
    changes = [row for row in rows("chaos") if row["table"] == "drift"]
    ways = ("engine", "serving", "serving, exploring")
    rates = [np.median([r["per_s"] for r in rows("load") if r["way"] == way]) for way in ways]
    return [
        f"after {max(max(row['there'], row['back']) for row in changes)} requests at most",
        f"{rates[0]:.0f} requests a second when",
        "{:.0f} through an `OnlinePlacer` that does not explore, and {:.0f}".format(*rates[1:]),
    ]


def on_zero_shot() -> list[str]:
    """The sealed problems on which placer `doppler` is worst, annealing there, and many devices."""
    found = {row["job"]: row for row in rows("sealed")}
    known = {name.removeprefix("known/"): row for name, row in found.items() if "known/" in name}
    placed: dict[str, list[dict[str, Any]]] = {case: [] for case in known}
    for name, row in found.items():
        if name.startswith("placed/"):
            placed[name.removeprefix("placed/").rpartition("/")[0]].append(row)
    others = ("job", "cores", "inference_s")
    best = {
        case: min(
            *(known[case][key] for key in ("search", "earlier")),
            *(v for row in every for key, v in row.items() if key not in others and v),
        )
        for case, every in placed.items()
    }

    def above(case: str, method: str) -> float:
        """Percents above the best known, on average over the policies."""
        return float(np.mean([100 * (row[method] / best[case] - 1) for row in placed[case]]))

    many = [case for case in known if known[case]["devices"] >= 8]
    untrained, trained = (
        np.mean([above(case, method) for case in many]) for method in ("untrained", "doppler")
    )
    *_, second, worst = sorted(known, key=lambda case: above(case, "doppler"))
    a, b, c, d = (
        f"{above(case, name):.0f}"
        for case in (worst, second)
        for name in ("annealing", "annealing, random moves")
    )
    about, other = known[worst], known[second]
    return [
        f"2 to {max(row['devices'] for row in known.values())} devices",
        f"On 8 and more devices the placer is at {untrained:.2f} % untrained and at {trained:.2f} "
        "% trained",
        f"the worst, {about['vertices']} vertices on {about['devices']} devices, is "
        f"{above(worst, 'doppler'):.0f} % above it",
        f"There annealing is at {a} % with chosen moves and at {b} % with random ones; on the "
        f"next, {other['vertices']} vertices on {other['devices']} devices, it is at {c} and {d} %",
    ]


def on_devices() -> list[str]:
    """Of Stage III: the one seed in virtual time that improved on its start."""
    means = [
        {name: np.mean(ms) for name, ms in row["ms"].items()}
        for row in rows("stage3")
        if row.get("ms")
    ]
    text = page("devices")
    told = re.search(r"one of three seeds improved \((\d+\.\d) to (\d+\.\d) ms", text)
    assert told is not None
    for figure in told.groups():
        assert any(f"{ms:.1f}" == figure for found in means for ms in found.values())
    return [told[0]]


CLAIMS: dict[str, Callable[..., list[str]]] = {
    "devices": on_devices,
    "learning": on_learning,
    "memory": on_memory,
    "models": on_models,
    "placers": on_placers,
    "rivals": on_rivals,
    "serving": on_serving,
    "speed": on_speed,
    "zero-shot": on_zero_shot,
}


def claims(name: str, shown: Callable[[str], str]) -> list[str]:
    """What follows from the data of a page, as the page has to put it."""
    if name not in CLAIMS:
        return []
    return CLAIMS[name](shown) if name in ("learning", "placers") else CLAIMS[name]()


@pytest.mark.parametrize("name", WITH_TABLES)
def test_figures_in_the_text_are_those_of_the_data(name: str, shown: Callable[[str], str]) -> None:
    text = page(name)
    followed = claims(name, shown)
    assert [claim for claim in followed if claim not in text] == []
    tables = "".join(shown(found) for found in re.findall(TABLE, text))
    known = numbers("\n".join([tables, *followed, GIVEN.get(name, "")]))
    told = figures(re.sub(NO_TEXT, "", text))
    assert told
    assert [figure for figure in told if not is_among(figure, known)] == []


def test_the_overview_has_the_figures_of_the_pages(shown: Callable[[str], str]) -> None:
    """Each line of it ends with a link to a page, which has its figures."""
    lines = [line for line in page("index").splitlines() if line.startswith("- ")]
    assert len(lines) >= 10
    for line in lines:
        (target,) = re.findall(r"→ \[[^]]*\]\(([\w-]+)\.md\)", line)
        known = numbers(re.sub(NO_TEXT, "", page(target)))
        text = re.sub(NO_TEXT, "", line)
        assert [figure for figure in figures(text) if not is_among(figure, known)] == [], line


def test_a_figure_that_is_not_in_the_data_is_noticed() -> None:
    known = numbers("| 12.34 | 1,500 | 1.238 |")
    for figure in ("12.3", "12.34", "12", "1,500", "24", "23.8"):
        assert is_among(figure, known)
    for figure in ("12.4", "12.35", "13", "1,499", "25"):
        assert not is_among(figure, known)
