"""A cumulative distribution as an SVG, drawn by hand so that a picture needs no library.

The horizontal axis is logarithmic. The vertical one is, too, in the share that is still above (1, 0.1, 0.01, ...): the
tail of a latency is what matters, and on a plain axis it is a line of zero height.
"""

import math
from html import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 50, 55
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8d6a9f")
BAR_COLOUR = "#777777"


def svg(title: str, unit: str, curves: dict[str, list[float]], bar: float | None = None) -> str:
    """The share of values above x, for each curve; `bar` is a vertical line."""
    everything = [max(value, 1e-3) for values in curves.values() for value in values] + ([bar] if bar else [])
    low, high = math.floor(math.log10(min(everything))), math.ceil(math.log10(max(everything) * 1.01))
    decades = max(1, math.ceil(math.log10(max(len(values) for values in curves.values()))))

    def x(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(above: float) -> float:
        return TOP + -math.log10(above) / decades * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 22, title, "start", size=15),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, unit, "middle"),
    ]
    for power in range(low, high + 1):
        parts.append(line(x(10.0**power), TOP, x(10.0**power), HEIGHT - BOTTOM))
        parts.append(text(x(10.0**power), HEIGHT - BOTTOM + 18, f"{10.0**power:g}", "middle"))
    for decade in range(decades + 1):
        label = "all above" if decade == 0 else f"1 in {10**decade:,}"
        parts.append(line(LEFT, y(10.0**-decade), WIDTH - RIGHT, y(10.0**-decade)))
        parts.append(text(LEFT - 6, y(10.0**-decade) + 4, label, "end"))
    if bar:
        parts.append(line(x(bar), TOP, x(bar), HEIGHT - BOTTOM, BAR_COLOUR, 'stroke-dasharray="6 4"'))
        parts.append(text(x(bar) - 6, TOP + 14, f"bar at p99: {bar:g}", "end"))
    for index, (name, values) in enumerate(curves.items()):
        colour = COLOURS[index % len(COLOURS)]
        ordered = sorted(values)
        count = len(ordered)
        steps = [(x(value), y((count - rank) / count)) for rank, value in enumerate(ordered)]
        points = " ".join(f"{across:.1f},{down:.1f}" for across, down in thinned(steps))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts.append(f'<rect x="{LEFT + 150 * index}" y="33" width="14" height="4" fill="{colour}"/>')
        parts.append(text(LEFT + 150 * index + 20, 40, name, "start"))
    return "\n".join([*parts, "</svg>", ""])


def thinned(steps: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points without those that lie within a pixel of the one before; the last stays."""
    kept = steps[:1]
    for across, down in steps[1:-1]:
        if abs(across - kept[-1][0]) + abs(down - kept[-1][1]) >= 1:
            kept.append((across, down))
    return kept + steps[-1:]


def line(x1: float, y1: float, x2: float, y2: float, colour: str = "#dddddd", more: str = "") -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'


def text(x: float, y: float, words: str, anchor: str, size: int = 12) -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
