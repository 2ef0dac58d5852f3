"""An SVG canvas in the classes of docs/stylesheets/pagelens.css: a picture follows its page, light or dark.

`standalone` adds the few rules that a picture needs as a file of its own.
"""

from html import escape
from itertools import count

WIDTH = 800
_numbers = count()

_STYLE = """<style>
svg { --a: #5aa9f8; --b: #f2a33a; --c: #2fbf8f; --d: #e58ac0; --ink: #16202c; --muted: #5b6675; --edge: #aab4c0;
  --panel: #ffffff; --blank: #edf0f4; --hatch: #9aa7b6; --accent: #b45309; background: var(--panel); }
@media (prefers-color-scheme: dark) { svg { --ink: #e8edf3; --muted: #9eaab8; --edge: #46515f; --panel: #151a21;
  --blank: #10141a; --hatch: #4d5c6e; --accent: #ffd166; } }
text { fill: var(--ink); font: 13px system-ui, sans-serif; } .small { font-size: 11.5px; fill: var(--muted); }
.strong { font-weight: 650; } .head { font-size: 11px; font-weight: 700; fill: var(--muted); }
.mono { font-family: monospace; font-size: 12px; } .mid { text-anchor: middle; } .end { text-anchor: end; }
.on { fill: #10141a; } .note { fill: var(--accent); } .box { fill: var(--panel); stroke: var(--edge); }
.blank { fill: var(--blank); stroke: var(--edge); } .cached { stroke: var(--edge); }
.hatch { stroke: var(--hatch); stroke-width: 1.5; } .a { fill: var(--a); } .b { fill: var(--b); }
.c { fill: var(--c); } .d { fill: var(--d); } .faint { opacity: 0.3; }
.shared { fill: none; stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 3; }
.line { fill: none; stroke: var(--muted); stroke-width: 1.5; }
.move { fill: none; stroke: var(--accent); stroke-width: 2; } .movetip { fill: var(--accent); }
</style>"""


class Drawing:
    """Collects SVG elements on a canvas 800 wide; `title` is the text for who cannot see the picture."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.height = 0.0
        self.id = f"picture{next(_numbers)}"
        self._parts: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, css: str, rounded: float = 3, **more: str) -> None:
        """A rectangle; `more` are further attributes."""
        extra = "".join(f' {name}="{escape(value)}"' for name, value in more.items())
        size = f'width="{width:.5g}" height="{height:.5g}"'
        self._parts.append(f'<rect class="{css}" x="{x:.5g}" y="{y:.5g}" {size} rx="{rounded:g}"{extra}/>')
        self.height = max(self.height, y + height)

    def text(self, x: float, y: float, content: str, css: str = "", size: float | None = None) -> None:
        """Text with its baseline at y."""
        style = f' style="font-size:{size:g}px"' if size else ""
        self._parts.append(f'<text class="{css}"{style} x="{x:.5g}" y="{y:.5g}">{escape(content)}</text>')
        self.height = max(self.height, y + 4)

    def hatched(self, x: float, y: float, width: float, height: float, css: str = "cached", rounded: float = 3) -> None:
        """A rectangle with diagonal lines."""
        self.rect(x, y, width, height, css, rounded, fill=f"url(#{self.id}-hatch)")

    def arrow(self, path: str) -> None:
        """A path with a tip at its end."""
        self._parts.append(f'<path class="move" marker-end="url(#{self.id}-tip)" d="{path}"/>')

    def svg(self) -> str:
        """The picture, without blank lines, as Markdown wants it."""
        definitions = (
            f'<defs><pattern id="{self.id}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><path class="hatch" d="M0 0V6"/></pattern>'
            f'<marker id="{self.id}-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'markerUnits="userSpaceOnUse" orient="auto"><path class="movetip" d="M0 0 8 4 0 8z"/></marker></defs>'
        )
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height + 6:.0f}" role="img" '
            f'aria-labelledby="{self.id}">'
        )
        title = f'<title id="{self.id}">{escape(self.title)}</title>'
        return "\n".join([opening, title, definitions, *self._parts, "</svg>"])


def standalone(svg: str) -> str:
    """The same picture as a file that needs no stylesheet."""
    return svg.replace("<defs>", _STYLE + "<defs>", 1)
