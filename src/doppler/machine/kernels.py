"""How fast devices compute: kernels of growing size, one device at a time, and a roofline.

And how much slower kernels get where all devices are busy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from doppler.base.progress import report
from doppler.cost import FAMILIES
from doppler.graph.ops import OpKind
from doppler.machine.bench import WARM_UP, Bench, Sample, Work
from doppler.machine.robust import typical_s
from doppler.topology.topology import DTYPE_CLASSES, KERNEL_FAMILIES, Device

TINY = Work(OpKind.INPUT_ELEMWISE, 64, "float32")  # takes a launch and nothing else
MATRICES = (128, 256, 512, 1024, 2048, 4096, 8192)
VECTORS = tuple(1 << n for n in (16, 18, 20, 22, 24, 26))
VECTOR_DTYPES = ("float32", "float16")
LONGEST_S = 0.15  # of a single kernel: larger ones are left out
ENOUGH_S = 0.05  # of one kernel
LOADED_S = 5e-3  # of a single kernel on all devices at once: larger ones are left out
LOADS, FEW = 3, 12  # kernels of each family there; runs of each
SAME_SPEED = 0.15  # share by which equal devices may differ from the median
MEMORY_SHARE = 1 / 8  # of a device, for all tensors of a kernel
CACHED_BYTES = 1 << 21  # less than that may stay in caches


@dataclass(frozen=True, slots=True)
class Roofline:
    """`launch_s + max(flops / rate, bytes / bandwidth)`, as measured on a device."""

    flops_per_s: Mapping[str, float]  # by dtype class
    memory_bytes_per_s: float
    launch_s: float

    def seconds(self, work: Work) -> float:
        """What it predicts for a kernel."""
        compute_s = work.flops / self.flops_per_s[work.dtype]
        return self.launch_s + max(compute_s, work.touched_bytes / self.memory_bytes_per_s)


def measure_kernels(
    bench: Bench, seconds: float, samples: list[Sample]
) -> tuple[tuple[Device, ...], dict[str, float]]:
    """The devices with their speeds, and how far the roofline is off, by kind of kernel.

    Devices are measured one at a time, the first at least; those left when the time is over are
    taken to be like the others.
    """
    devices, until = bench.topology.devices, monotonic() + seconds
    typical: list[dict[Work, float]] = []
    for d, device in enumerate(devices):
        report("measuring kernels", d, len(devices))
        if typical and monotonic() + seconds / len(devices) / 2 > until:
            break
        took = _kernels(bench, d, max(until - monotonic(), 0.0) / (len(devices) - d))
        samples += [
            Sample("kernel", work.name, device.name, work.touched_bytes, s)
            for work, each in took.items()
            for s in each
        ]
        typical.append({work: typical_s(each) for work, each in took.items()})
    report("measuring kernels", len(devices), len(devices))
    found = rooflines(typical, len(devices))
    measured_devices = tuple(
        replace(
            device,
            flops_per_s=dict(roofline.flops_per_s),
            memory_bytes_per_s=roofline.memory_bytes_per_s,
            launch_s=roofline.launch_s,
        )
        for device, roofline in zip(devices, found, strict=True)
    )
    return measured_devices, _errors(typical, found)


def measure_contention(
    bench: Bench, devices: Sequence[Device], seconds: float, samples: list[Sample]
) -> dict[str, float]:
    """How many times longer kernels take where all devices are busy, by family; at least 1.

    `devices` are those of the bench with their speeds. Kernels are timed alone on every device,
    then while all devices run the families in turn, so that products and what is bound by memory
    meet as they do in a graph; the median over kernels and devices counts. One kernel of each
    family at least, however short the time, but a small one then; nothing on a single device.
    """
    if len(devices) == 1:
        return {}
    until, numbers = monotonic() + seconds, range(len(devices))
    ratios: dict[str, list[float]] = {}
    # On one device after the other, then on all at once.
    runs_in_a_row = (FEW + WARM_UP) * len(KERNEL_FAMILIES) * (len(devices) + 1)
    longest_s = min(LOADED_S, seconds / runs_in_a_row)
    # The largest of each family first: what is left out are the smaller ones.
    for works in zip(*_loads(devices, longest_s), strict=True):
        if ratios and monotonic() > until:
            break
        alone = [[bench.kernel(work, d, FEW) for work in works] for d in numbers]
        together = _together(bench, works)
        for device, ones, others in zip(devices, alone, together, strict=True):
            for work, one, other in zip(works, ones, others, strict=True):
                samples += [
                    Sample("kernels", work.name, device.name, work.touched_bytes, s) for s in other
                ]
                if other and (alone_s := float(np.median(one))) > 0:
                    found = ratios.setdefault(FAMILIES[work.kind], [])
                    found.append(float(np.median(other)) / alone_s)
    return {family: max(1.0, float(np.median(found))) for family, found in ratios.items()}


def _together(bench: Bench, works: Sequence[Work]) -> list[list[list[float]]]:
    """By device and kernel, seconds while all devices run them; none where they never all did."""
    found: list[list[list[float]]] = []
    for repeats in (FEW, 2 * FEW, 4 * FEW):  # a device may be done before another has begun
        found = bench.kernels(works, range(bench.topology.num_devices), repeats)
        if all(each for by_kernel in found for each in by_kernel):
            break
    return found


def _loads(devices: Sequence[Device], longest_s: float) -> list[list[Work]]:
    """For each family, the largest kernels that take `longest_s` at most on the first device.

    `LOADS` of them, the largest first; the smallest again where there are fewer.
    """
    device = devices[0]
    roofline = Roofline(device.flops_per_s, device.memory_bytes_per_s, device.launch_s)
    room = min(d.memory_bytes for d in devices) * MEMORY_SHARE
    families = [
        [Work(OpKind.MATMUL, n, "float32") for n in MATRICES],
        [Work(OpKind.INPUT_ELEMWISE, n, "float32") for n in VECTORS],
        [Work(OpKind.SUM_REDUCTION, n, "float32") for n in VECTORS],
    ]
    found: list[list[Work]] = []
    for works in families:
        short = [w for w in works if roofline.seconds(w) <= longest_s and w.touched_bytes <= room]
        chosen = [*(short or works[:1])[::-1][:LOADS]]
        found.append([*chosen, *chosen[-1:] * (LOADS - len(chosen))])
    return found


def rooflines(typical: Sequence[Mapping[Work, float]], num_devices: int) -> list[Roofline]:
    """A roofline for each device, from the typical seconds of kernels on the first of them.

    One for all where all are about as fast; the median one for devices that were not measured.
    """
    works = dict.fromkeys(work for each in typical for work in each)
    middle = {w: float(np.median([each[w] for each in typical if w in each])) for w in works}
    ratios = [float(np.median([s / max(middle[w], 1e-12) for w, s in t.items()])) for t in typical]
    like_all = fit_roofline(middle)
    if all(abs(ratio - 1) <= SAME_SPEED for ratio in ratios):
        return [like_all] * num_devices
    own = [fit_roofline(each) for each in typical]
    return own + [like_all] * (num_devices - len(own))


def fit_roofline(typical: Mapping[Work, float]) -> Roofline:
    """The roofline of a device from the typical seconds of kernels.

    Rates are those of the largest matrices, bandwidth that of vectors too large for caches.
    """
    launch = typical[TINY]

    def beyond_launch(work: Work) -> float:
        return max(typical[work] - launch, 0.1 * typical[work], 1e-12)

    rates: dict[str, float] = {}
    for dtype in DTYPE_CLASSES:
        sizes = [w for w in typical if w.kind == OpKind.MATMUL and w.dtype == dtype]
        largest = sorted(sizes, key=lambda work: work.size)[-2:]
        rates[dtype] = max(work.flops / beyond_launch(work) for work in largest)
    vectors = [w for w in typical if w.kind == OpKind.INPUT_ELEMWISE and w != TINY]
    large = [w for w in vectors if w.touched_bytes > CACHED_BYTES] or vectors[-1:]
    bandwidth = float(np.median([w.touched_bytes / beyond_launch(w) for w in large]))
    return Roofline(rates, bandwidth, launch)


def _errors(typical: Sequence[Mapping[Work, float]], found: Sequence[Roofline]) -> dict[str, float]:
    """How far rooflines are off, by kind of kernel, each kernel weighted by its seconds."""
    off: dict[str, list[float]] = {}
    total: dict[str, list[float]] = {}
    for each, roofline in zip(typical, found, strict=False):
        for work, took in each.items():
            off.setdefault(str(work.kind), []).append(abs(roofline.seconds(work) - took))
            total.setdefault(str(work.kind), []).append(took)
    return {kind: sum(off[kind]) / max(sum(total[kind]), 1e-12) for kind in off}


def _kernels(bench: Bench, device: int, seconds: float) -> dict[Work, list[float]]:
    """Seconds of every kernel on one device; of the smallest at least, however short the time."""
    until = monotonic() + seconds
    found = {TINY: bench.kernel(TINY, device, 20)}
    ladders = [[Work(OpKind.INPUT_ELEMWISE, n, dtype) for n in VECTORS] for dtype in VECTOR_DTYPES]
    ladders += [[Work(OpKind.SUM_REDUCTION, n, "float32") for n in VECTORS]]
    ladders += [[Work(OpKind.MATMUL, n, dtype) for n in MATRICES] for dtype in DTYPE_CLASSES]
    room = bench.topology.devices[device].memory_bytes * MEMORY_SHARE
    for number, ladder in enumerate(ladders):
        limit = monotonic() + max(until - monotonic(), 0.0) / (len(ladders) - number)
        took = 0.0
        for step, work in enumerate(ladder):
            ahead = took * work.flops / ladder[max(step - 1, 0)].flops  # if it grows as the work
            late = monotonic() + 3 * ahead > limit
            if step and (late or ahead > LONGEST_S or work.touched_bytes > room):
                break
            repeats = int(np.clip(ENOUGH_S / max(ahead, 1e-9), 3, 20))
            found[work] = bench.kernel(work, device, repeats)
            took = typical_s(found[work])
    return found
