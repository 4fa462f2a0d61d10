"""Runs the pages of the gallery when the site is built, and adds what their blocks print and draw.

A page is Markdown like any other. Its blocks are run in order, in an empty folder: a Python block
that begins with '# NAME.py' is saved as that file, other Python blocks share their names, and each
command of a shell block runs as it stands. What a block prints is shown below it. A picture has the
path to which a block wrote it, like `![](figures/margins.png)`; a report.html is published, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from blocks import Block, blocks_of

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "gallery"
AT_ONCE = 2
"""How many pages run at the same time."""
RUN_PYTHON = (
    "import sys\n"
    "for number, text in enumerate(sys.stdin.read().split('\\0')):\n"
    "    print('\\0', end='', flush=True)\n"
    "    exec(compile(text, f'Python block {number}', 'exec'), globals())\n"
)


class PageFailed(Exception):
    """A block of a page did not do what the page promises."""


def run_all(pictures: Path, live: Path) -> dict[str, str]:
    """Run every page; return the text of each by its name in the site, with output and pictures."""
    shutil.rmtree(pictures, ignore_errors=True)
    names = sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "index")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        texts = pool.map(lambda name: run_page(name, pictures / name, live), names)
        return {f"gallery/{name}": text for name, text in zip(names, texts, strict=True)}


def run_page(name: str, pictures: Path, live: Path) -> str:
    """Run one page, keep its pictures, publish its report, and return its text."""
    begun = time.monotonic()
    page = f"docs/gallery/{name}.md"
    lines = (ROOT / page).read_text("utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        for block in reversed(list(_outputs(list(blocks_of(ROOT, page)), Path(folder)))):
            end, printed = block
            if printed:
                lines[end:end] = ["", "```text", *printed.splitlines(), "```"]
        text = "\n".join(lines) + "\n"

        def keep(found: re.Match[str]) -> str:
            drawn = Path(folder) / found[2]
            if not drawn.exists():
                raise PageFailed(f"{page}: no block drew {found[2]}")
            pictures.mkdir(parents=True, exist_ok=True)
            kept = drawn.relative_to(folder).as_posix().replace("/", "-")
            shutil.copy(drawn, pictures / kept)
            return f"![{found[1]}](../generated/gallery/{name}/{kept})"

        text = re.sub(r"!\[([^\]]*)\]\(([^)]+)\)", keep, text)
        if (report := Path(folder) / "report.html").exists():
            publish(report, live / f"{name}.html", folder)
    took = time.monotonic() - begun
    return f"{text}\n*Run and drawn when this site was built, in {took:.0f} s.*\n"


def publish(page: Path, target: Path, folder: str | Path) -> None:
    """Copy an interactive page into the site, where all share one script of Plotly."""
    from safemargin.web.pages import plotly_script

    text = page.read_text("utf-8").replace(f"{Path(folder).resolve()}/", "")
    text = text.replace(
        f"<script>{plotly_script()}</script>", '<script src="plotly.min.js"></script>'
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    (target.parent / "plotly.min.js").write_text(plotly_script(), "utf-8")
    target.write_text(text, "utf-8")


def _outputs(blocks: list[Block], folder: Path) -> list[tuple[int, str]]:
    """Run the blocks of a page; return the last line of each and what it printed."""
    environment = {
        **os.environ,
        "XDG_DATA_HOME": str(folder / ".data"),
        "COLUMNS": "88",
        "NO_COLOR": "1",
        "MPLBACKEND": "agg",
        "SDL_VIDEODRIVER": "dummy",
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
    }
    found: list[tuple[int, str]] = []
    python: list[tuple[int, str]] = []

    def run(words: list[str], given: str = "") -> str:
        done = subprocess.run(
            words, cwd=folder, env=environment, input=given, capture_output=True, text=True
        )
        if done.returncode not in (0, 1):
            raise PageFailed(f"{shlex.join(words[:3])} …: {done.stderr[-2000:]}")
        if done.returncode and words[0] != "safemargin":
            raise PageFailed(done.stderr[-2000:])
        lines = done.stdout.replace(f"{folder.resolve()}/", "").rstrip().splitlines()
        written = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        return "\n".join(line for line in lines if line not in written)

    def run_python() -> None:
        """Run the Python blocks so far, which share their names, in one process."""
        texts = run([sys.executable, "-c", RUN_PYTHON], "\0".join(text for _, text in python))
        for (end, _), printed in zip(python, texts.split("\0")[1:], strict=True):
            found.append((end, printed.rstrip()))
        python.clear()

    for block in blocks:
        end = block.line + block.text.count("\n") + 1
        if block.name:
            (folder / block.name).write_text(block.text + "\n", "utf-8")
        elif block.kind == "python":
            python.append((end, block.text))
        elif block.kind == "shell":
            if python:
                run_python()
            printed = [run(shlex.split(command)) for command in block.commands()]
            found.append((end, "\n".join(filter(None, printed))))
    if python:
        run_python()
    return sorted(found)


if (
    __name__ == "__main__"
):  # python docs/run_gallery.py PAGE …: to look at pages while they are written
    for name in sys.argv[1:]:
        with contextlib.suppress(BrokenPipeError):
            print(run_page(name, ROOT / "docs/generated/gallery" / name, Path("/tmp/gallery-live")))
