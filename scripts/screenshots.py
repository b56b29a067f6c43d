#!/usr/bin/env python3
"""Draws the pictures of README.md anew, from what dsmoe prints: python3 scripts/screenshots.py

It builds dsmoe, writes its demo, verifies a copy whose experts 1 and 2 are exchanged, and draws the
terminal as SVG; Chromium draws the top of the page that --html wrote. Each picture is made for a light and a dark
background, in docs/images. It needs Go and, as `chromium`, Chromium.
"""

import html
import pathlib
import re
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
# background, frame, text, and what dsmoe colours: bold, red, green, yellow, faint
THEMES = {
    "light": ("#ffffff", "#d0d7de", "#1f2328", {"1": "#1f2328", "31": "#c4162a", "32": "#1a7f37", "33": "#9a6700", "2": "#59636e"}),
    "dark": ("#0d1117", "#30363d", "#e6edf3", {"1": "#e6edf3", "31": "#ff7b72", "32": "#3fb950", "33": "#d29922", "2": "#9198a1"}),
}
WIDTH, SIZE, LINE = 112, 13, 18  # columns, pixels of a letter, pixels of a line
SHOWN = r"^(embedding|layer|head|           checked|$|DIVERGES|           all in|also|cause|coverage|verdict)"


def spans(line, colours, plain):
    """The line as tspan elements, one for each colour."""
    out, now = "", []
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b["):
            codes = part[2:-1].split(";")
            now = [] if codes in ([""], ["0"]) else now + codes
        elif part:
            fill = next((colours[c] for c in now if c in colours and c != "1"), plain)
            weight = ' font-weight="bold"' if "1" in now else ""
            out += f'<tspan fill="{fill}"{weight}>{html.escape(part)}</tspan>'
    return out


def terminal(lines, theme):
    """An SVG of the lines on a terminal."""
    back, frame, plain, colours = THEMES[theme]
    wide, high = round(WIDTH * SIZE * 0.602) + 32, len(lines) * LINE + 28
    body = "".join(
        f'<text x="16" y="{24 + LINE * i}" xml:space="preserve">{spans(line, colours, plain)}</text>\n'
        for i, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="{SIZE}">\n'
        "<title>dsmoe verify on a checkpoint whose experts 1 and 2 are exchanged</title>\n"
        f'<rect x="0.5" y="0.5" width="{wide - 1}" height="{high - 1}" rx="6" fill="{back}" stroke="{frame}"/>\n'
        f"{body}</svg>\n")


def clip(line):
    """The line without what is beyond the width; a colour that is open there ends."""
    out, width = "", 0
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if not part.startswith("\x1b["):
            rest = max(0, WIDTH - width)
            width += len(part)
            part = part if len(part) <= rest else part[:rest - 1] + "…" if rest else ""
        out += part
    return out


def main():
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        dsmoe = work / "dsmoe"
        subprocess.run(["go", "build", "-o", dsmoe, "./cmd/dsmoe"], cwd=ROOT, check=True)
        subprocess.run([dsmoe, "demo", "demo"], cwd=work, check=True, capture_output=True)
        shutil.copytree(work / "demo/checkpoint", work / "broken")
        for file in (work / "broken").glob("*.safetensors"):
            raw = file.read_bytes()
            file.write_bytes(re.sub(rb"experts\.([12])\.", lambda m: b"experts.%d." % (3 - int(m[1])), raw))
        ran = subprocess.run([dsmoe, "verify", "--color=always", "--html=page.html", "broken", "demo/golden"],
                             cwd=work, capture_output=True, text=True)
        bare = lambda line: re.sub(r"\x1b\[[0-9;]*m", "", line)
        lines = ["$ dsmoe verify --html=page.html broken demo/golden", ""] + [clip(l) for l in ran.stdout.splitlines() if re.match(SHOWN, bare(l))]
        while not bare(lines[-1]):
            lines.pop()
        for theme in THEMES:
            (IMAGES / f"verify-{theme}.svg").write_text(terminal(lines, theme))
        for theme in THEMES:
            dark = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
            subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *dark,
                            "--window-size=1000,700", f"--screenshot={IMAGES}/page-{theme}.png",
                            f"file://{work}/page.html"], check=True, capture_output=True)


if __name__ == "__main__":
    main()
