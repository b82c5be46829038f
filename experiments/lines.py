"""Values over time as an SVG, drawn by hand so that a picture needs no library."""

from experiments.cumulative import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, line, text

LINES = 6


def svg(title: str, across: str, up: str, curves: dict[str, list[tuple[float, float]]]) -> str:
    """One line for each curve; both axes begin at 0."""
    right = max(x for points in curves.values() for x, _ in points) or 1.0
    top = max(y for points in curves.values() for _, y in points) * 1.1 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + x / right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 22, title, "start", size=15),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, across, "middle"),
        text(LEFT, TOP - 6, up, "end"),
    ]
    for step in range(LINES + 1):
        x, y = place(right * step / LINES, top * step / LINES)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y))
        parts.append(text(LEFT - 6, y + 4, f"{top * step / LINES:.2g}", "end"))
        parts.append(text(x, HEIGHT - BOTTOM + 18, f"{right * step / LINES:.0f}", "middle"))
    for number, (name, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts.append(f'<rect x="{LEFT + 180 * number}" y="33" width="14" height="4" fill="{colour}"/>')
        parts.append(text(LEFT + 180 * number + 20, 40, name, "start"))
    return "\n".join([*parts, "</svg>", ""])
