"""Small drawings for notebooks: SVG in which names are escaped, and which no script is in."""

from collections.abc import Iterable
from html import escape
from itertools import islice

from doppler.base.notebook import cut
from doppler.base.palette import colour

MAX_LEGEND = 5
_FONT = 'font-family="sans-serif" font-size="11" fill="currentColor"'


def picture(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    """A drawing of that many units, as wide as there is room; the label is for screen readers."""
    style = f"max-width:{width}px;width:100%;height:auto;display:block"
    head = f'<svg viewBox="0 0 {width} {height}" style="{style}" role="img"'
    return f'{head} aria-label="{escape(label)}">{"".join(parts)}</svg>'


def text(x: float, y: float, content: str, *, end: bool = False, longest: int = 16) -> str:
    """A text that begins at a point, or ends there."""
    anchor = "end" if end else "start"
    inner = escape(cut(content, longest))
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {_FONT}>{inner}</text>'


def boxes(number: int, rectangles: Iterable[tuple[float, float, float, float]]) -> str:
    """Rectangles (x, y, width, height) in the colour of device or kind `number`, as one path."""
    path = "".join(f"M{x:g} {y:g}h{w:g}v{h:g}h{-w:g}z" for x, y, w, h in rectangles)
    return f'<path fill="{colour(number) if number >= 0 else "#8a939e"}" d="{path}"></path>'


def lines(points: Iterable[tuple[float, float, float, float]]) -> str:
    """Thin lines (x, y, x, y), as one path."""
    path = "".join(f"M{a:g} {b:g}L{c:g} {d:g}" for a, b, c, d in points)
    style = 'fill="none" stroke="currentColor" stroke-opacity="0.3"'
    return f'<path {style} d="{path}"></path>'


def ground(x: float, y: float, width: float, height: float) -> str:
    """A pale rectangle, on which gaps can be seen."""
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {size} fill="currentColor" fill-opacity="0.08"></rect>'


def legend(x: float, y: float, names: Iterable[tuple[int, str]]) -> list[str]:
    """What the first colours stand for, in one line: pairs of a number and a name."""
    parts = []
    for number, name in islice(names, MAX_LEGEND):
        parts += [boxes(number, [(x, y - 9, 10, 10)]), text(x + 14, y, name)]
        x += 26 + 6.5 * min(len(name), 16)
    return parts
