"""A recording as one HTML file, viewer and all: to be mailed, or opened from a disk without a network.

<style>     pagelens.css
<script>    the viewer's scripts, as the live page has them
<script type="application/octet-stream">   the .kvtrace, gzipped, in base64
"""

import base64
import gzip
from html import escape
from pathlib import Path

from pagelens.engine.kvtrace import Trace

from . import scripts

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ margin: 0; padding: 16px 24px; background: #f6f7f9; }}
body {{ font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }}
body.dark {{ background: #0d1116; }}
{styles}
</style>
</head>
<body>
<div class="pagelens exported">
  <header class="bar">
    <strong class="brand">Pagelens</strong> <span class="facts">{title}</span>
    <span class="connection" data-part="progress" role="status">reading…</span>
  </header>
  <div class="viewer" data-part="viewer"></div>
</div>
<script type="application/octet-stream" id="recording">{recording}</script>
<script>
{code}
</script>
</body>
</html>
"""


def single_file(path: Path) -> str:
    """The HTML page that replays the recording at `path`.

    Raises TraceError if that is no whole recording.
    """
    for _ in Trace(path).pictures():
        pass  # a file that the viewer could not replay is not worth sending
    data = path.read_bytes()
    packed = data if path.suffix == ".gz" else gzip.compress(data)
    code = "\n".join(
        (scripts.STATIC / name).read_text(encoding="utf-8") for name in (*scripts.VIEWER_SCRIPTS, "exported.js")
    )
    return PAGE.format(
        title=escape(path.name),
        styles=(scripts.STATIC / "pagelens.css").read_text(encoding="utf-8"),
        recording=base64.b64encode(packed).decode("ascii"),
        code=code.replace("</script", "<\\/script"),
    )
