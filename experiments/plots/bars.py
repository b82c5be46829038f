"""Groups of bars as an SVG, drawn by hand so that a picture needs no library. A dashed line in a group is its floor."""

from experiments.plots.cdf import BAR_COLOUR, COLOURS, line, text

FLOOR = "floor"
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 60, 50
LINES = 5


def svg(title: str, groups: dict[str, dict[str, float]], number: str = "{:g}") -> str:
    """One group a key; in it one bar a name, and the floor as a line."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group if name != FLOOR))
    top = max(value for group in groups.values() for value in group.values()) * 1.08 or 1.0

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 22, title, "start", size=15),
    ]
    for step in range(LINES + 1):
        value = top * step / LINES
        parts.append(line(LEFT, y(value), WIDTH - RIGHT, y(value)))
        parts.append(text(LEFT - 6, y(value) + 4, number.format(value), "end"))
    wide = (WIDTH - LEFT - RIGHT) / len(groups)
    bar = wide * 0.7 / len(names)
    for place, (label, group) in enumerate(groups.items()):
        start = LEFT + wide * (place + 0.15)
        parts.append(text(start + wide * 0.35, HEIGHT - BOTTOM + 20, label, "middle"))
        for number_of_bar, name in enumerate(names):
            left, value = start + bar * number_of_bar, group[name]
            parts.append(
                f'<rect x="{left:.1f}" y="{y(value):.1f}" width="{bar * 0.92:.1f}"'
                f' height="{y(0) - y(value):.1f}" fill="{colour(number_of_bar)}"/>'
            )
            parts.append(text(left + bar * 0.46, y(value) - 5, number.format(value), "middle"))
        floor = y(group[FLOOR])
        parts.append(line(start - 6, floor, start + wide * 0.7 + 6, floor, "black", 'stroke-dasharray="5 3"'))
    for number_of_bar, name in enumerate([*names, FLOOR]):
        across = LEFT + 150 * number_of_bar
        if name == FLOOR:
            parts.append(line(across, 42, across + 14, 42, "black", 'stroke-dasharray="5 3"'))
        else:
            parts.append(f'<rect x="{across}" y="36" width="14" height="10" fill="{colour(number_of_bar)}"/>')
        parts.append(text(across + 20, 46, name, "start"))
    return "\n".join([*parts, "</svg>", ""])


def colour(number: int) -> str:
    """Grey for the peer, which comes first."""
    return (BAR_COLOUR, *COLOURS)[number]
