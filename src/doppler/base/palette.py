"""Colours of devices and kinds: told apart by colour-blind readers too."""

# Sixteen colours whose distance in CIELAB is at least 20 for every pair, for readers with normal
# vision and for those who lack one of the three kinds of cones (Machado et al. 2009).
COLOURS = (
    *("#144ed8", "#ff8900", "#009d89", "#b162b1", "#9d0000", "#62ebc4", "#ffc489", "#623b9d"),
    *("#b1ebff", "#62894e", "#d84e14", "#b1b1ff", "#d8eb62", "#273b62", "#9d76eb", "#761427"),
)
HATCHES = ("", "/", "\\", "x", ".", "-", "|", "+")  # from the seventeenth on


def colour(number: int) -> str:
    """The colour of device or kind `number`; they repeat after sixteen, with another hatch."""
    return COLOURS[number % len(COLOURS)]


def hatch(number: int) -> str:
    """The hatch of device or kind `number`, as matplotlib names them; empty for the first ones."""
    return HATCHES[number // len(COLOURS) % len(HATCHES)]


def text_on(fill: str) -> str:
    """Black or white: what can be read better on a colour such as `#144ed8`."""
    return "#000000" if luminance(fill) > 0.18 else "#ffffff"


def luminance(fill: str) -> float:
    """Relative luminance, from 0 for black to 1 for white (WCAG 2.2)."""
    parts = [int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
