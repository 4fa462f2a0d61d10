"""How long one waits for a page: python benchmarks/bench_pages.py STUDY

Starts the explorer as a person would and asks it, over HTTP, for what the page asks for first; then
for pictures at random steps of its longest episode once all are filmed. Then writes the report.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

PICTURES = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", type=Path)
    study = parser.parse_args().study
    began = time.perf_counter()
    command = [sys.executable, "-m", "safemargin", "explore", str(study), "--json"]
    explorer = subprocess.Popen(
        [*command, "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        address = json.loads(explorer.stdout.readline())["address"]  # type: ignore[union-attr]
        print(f"{time.perf_counter() - began:8.2f} s  until the page's address is printed")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        read(browser, address)  # the printed link, with its token
        start = address.partition("?")[0]
        ask_as_a_page_does(lambda path: read(browser, start + path), began)
    finally:
        explorer.send_signal(2)
        explorer.wait()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "report.html"
        began = time.perf_counter()
        report = [sys.executable, "-m", "safemargin", "report", str(study), "-o", str(target)]
        subprocess.run(report, check=True, capture_output=True)
        size = target.stat().st_size / 1e6
        print(f"{time.perf_counter() - began:8.2f} s  for the report, {size:.1f} MB")


def ask_as_a_page_does(ask: Callable[[str], bytes], began: float) -> None:
    about: Any = json.loads(ask("api/study"))
    ask(f"api/margins/{about['default_proxy']}")
    name, step = about["start"]["episode"], about["start"]["step"]
    ask(f"api/episodes/{name}")
    ask(f"api/episodes/{name}/frames/{step}")
    print(f"{time.perf_counter() - began:8.2f} s  until the worst moment can be seen")
    longest = max(about["episodes"], key=lambda each: each["steps"])
    name, steps = longest["name"], longest["steps"]
    began = time.perf_counter()
    ask(f"api/episodes/{name}/frames/{steps}")
    print(f"{time.perf_counter() - began:8.2f} s  for the last of {steps:,} steps, not filmed yet")
    while (film := json.loads(ask(f"api/episodes/{name}/film")))["taken"] < film["of"]:
        time.sleep(0.1)
    print(f"{time.perf_counter() - began:8.2f} s  until all are filmed")
    draw = random.Random(0)
    waits = []
    for _ in range(PICTURES):
        began = time.perf_counter()
        ask(f"api/episodes/{name}/frames/{draw.randrange(steps)}")
        waits.append(1000 * (time.perf_counter() - began))
    waits.sort()
    for share in (0.5, 0.99, 1):
        place = min(int(share * PICTURES), PICTURES - 1)
        print(f"{waits[place]:8.2f} ms for a picture after that, at most, in {share:.0%}")


def read(browser: urllib.request.OpenerDirector, address: str) -> bytes:
    with browser.open(address, timeout=120) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    main()
