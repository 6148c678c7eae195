"""Colours are told apart by readers with any kind of colour vision."""

from itertools import combinations

import numpy as np
import pytest

from doppler.base.palette import COLOURS, HATCHES, colour, hatch, luminance, text_on

# What readers without one kind of cones see, in linear RGB (Machado et al. 2009, severity 1).
VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def linear(fill: str):
    parts = np.array([int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    x, y, z = np.array(TO_XYZ) @ rgb / [0.9505, 1, 1.089]
    f = [np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_sixteen_colours_are_far_apart(vision: str) -> None:
    seen = [lab(np.clip(np.array(VISION[vision]) @ linear(c), 0, 1)) for c in COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 20
    assert len(COLOURS) == 16


def test_devices_beyond_the_sixteenth_have_another_hatch() -> None:
    seen = {(colour(d), hatch(d)) for d in range(16 * len(HATCHES))}
    assert len(seen) == 16 * len(HATCHES)
    assert all(hatch(d) == "" for d in range(16))


@pytest.mark.parametrize("fill", COLOURS)
def test_text_on_a_colour_has_enough_contrast(fill: str) -> None:
    low, high = sorted([luminance(fill), luminance(text_on(fill))])
    assert (high + 0.05) / (low + 0.05) > 4.5
