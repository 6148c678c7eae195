"""The tables of `engine_study.py`, from the results it wrote."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from doppler.machine.validation import Validation

NAMES = ("chainmm", "ffnn", "llama-block", "llama-layer")
SYNCHRONOUS = ("critical-path", "enumerative", "search")
YARDSTICKS = ("contention", "schedule", "engine")
NOISE_DRAWS = 300
SHOWN = {  # rows that a reader could take for the policy's own
    "doppler-sim": "doppler-sim, best of the run",
    "doppler-sys": "doppler-sys, best of the run",
}

Result = dict[str, Any]


def show(paths: list[Path]) -> None:
    """The tables, as docs have them."""
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    rows = list({(r["devices"], r["workload"]): r for r in lines}.values())
    rows.sort(key=lambda r: (r["devices"], NAMES.index(r["workload"])))
    for devices in sorted({r["devices"] for r in rows}):
        some = [r for r in rows if r["devices"] == devices]
        about = "; ".join(some[0][key] for key in ("links", "machine", "date"))
        print(f"\n{devices} devices, links: {about}\n")
        _row("ms", [r["workload"] for r in some])
        _row("---", ["---"] * len(some))
        _show_placed(some)
        _show_barriers(some)
        for key, mode in (("validation", ""), ("validation_fixed", ", in fixed order")):
            if all(key in r for r in some):
                _show_validation([r[key] for r in some], [noise_of(r, key) for r in some], mode)


def _show_placed(some: list[Result]) -> None:
    """The makespans of all methods in both modes, and their yardsticks."""
    modes = (("placed", ""), ("fixed", ", in fixed order"), ("captured", ", as one CUDA graph"))
    for key, mode in modes:
        for name in _names(some, key):
            _row(f"{SHOWN.get(name, name)}{mode}", [_spread(r[key][name]) for r in some])
    _row("ideal", [f"{r['ideal_ms']:.1f}" for r in some])
    best = [min(_means(r, "placed") + _means(r, "fixed")) for r in some]
    over = [100 * (b / r["ideal_ms"] - 1) for b, r in zip(best, some, strict=True)]
    _row("best above ideal", [f"{x:.1f} %" for x in over])
    for key, mode in (("placed", ""), ("fixed", ", in fixed order")):
        for name in _names(some, key):
            if all("yardsticks" in r[key][name] for r in some):
                for yardstick in YARDSTICKS:
                    cells = [_yardstick(r[key][name], yardstick) for r in some]
                    _row(f"{name}{mode}: {yardstick}", cells)


def _show_barriers(some: list[Result]) -> None:
    """What work conservation saves; where that is negative, barriers are faster."""
    if not all(r.get("synchronous") for r in some):
        return
    for name in SYNCHRONOUS:
        _row(f"{name}, bulk-synchronous", [_spread(r["synchronous"][name]) for r in some])
        _row(
            f"{name}, saved by work conservation", [f"{100 * _saved(r, name):.1f} %" for r in some]
        )
    losing = [[name for name in SYNCHRONOUS if _saved(r, name) < 0] for r in some]
    _row("faster with barriers", [", ".join(names) or "none" for names in losing])


def _show_validation(checks: list[Result], noise: list[float], mode: str) -> None:
    """How well the simulator predicts in a mode."""
    _row(f"assignments validated{mode}", [str(len(c["measured_ms"])) for c in checks])
    _row("Pearson", [f"{c['pearson']:.4f}" for c in checks])
    _row("Spearman", [f"{c['spearman']:.3f}" for c in checks])
    _row("Spearman, best quarter", [f"{c['best_spearman']:.2f}" for c in checks])
    _row("mean absolute error", [f"{100 * c['mape']:.1f} %" for c in checks])
    _row("noise of what was measured", [f"{100 * x:.1f} %" for x in noise])
    perfect = [of_a_perfect_simulator(c, x) for c, x in zip(checks, noise, strict=True)]
    _row("Spearman of a perfect simulator", [f"{p[0]:.3f}" for p in perfect])
    _row("the same, best quarter", [f"{p[1]:.2f}" for p in perfect])


def _names(some: list[Result], key: str) -> list[str]:
    """Methods that all results have, in their order."""
    return [name for name in some[0].get(key, {}) if all(name in r.get(key, {}) for r in some)]


def _means(result: Result, key: str) -> list[float]:
    return [found["mean"] for found in result.get(key, {}).values()]


def _saved(result: Result, name: str) -> float:
    """The share of the makespan with barriers that a run without them saves."""
    return float(1 - result["placed"][name]["mean"] / result["synchronous"][name]["mean"])


def _yardstick(found: Result, name: str) -> str:
    mean, std = found["yardsticks"][name], found["yardsticks_std"][name]
    return f"{mean:.3f} ± {std:.3f}" if std else f"{mean:.3f}"


def noise_of(result: Result, key: str = "validation") -> float:
    """Standard deviation of what was measured under one assignment, as a share of it.

    Where all that were validated ran twice, of the mean of the two; otherwise of one run, by those
    that were placed.
    """
    checked = result[key]
    shares = np.array(checked["spread_ms"]) / np.array(checked["measured_ms"])
    if not shares.any():
        rows = result["placed" if key == "validation" else "fixed"]
        placed = [found for name, found in rows.items() if name != "single"]
        shares = np.array([found["std"] / found["mean"] for found in placed])
    return float(np.sqrt(np.mean(shares**2)))


def of_a_perfect_simulator(checked: Result, noise: float) -> tuple[float, float]:
    """Spearman, over all and among the best quarter, if runs only differed by such noise."""
    predicted, rng = np.array(checked["predicted_ms"]), np.random.default_rng(0)
    draws = predicted * (1 + noise * rng.standard_normal((NOISE_DRAWS, len(predicted))))
    nothing = np.zeros(len(predicted))
    found = [Validation("", "", (), measured, nothing, predicted) for measured in draws]
    every, best = ([getattr(f, key) for f in found] for key in ("spearman", "best_spearman"))
    return float(np.mean(every)), float(np.mean(best))


def _row(name: str, cells: list[str]) -> None:
    print("| " + " | ".join([name, *cells]) + " |")


def _spread(found: Result) -> str:
    return f"{found['mean']:.1f} ± {found['std']:.1f}"
