"""How the card of a bundled agent is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def write_card(card: dict[str, Any], path: Path) -> None:
    """Indented JSON with every list of plain values on one line."""
    text = json.dumps(card, indent=2, ensure_ascii=False)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{_joined(found[1])}]", text)
    path.write_text(text + "\n", encoding="utf-8")


def _joined(lines: str) -> str:
    return re.sub(r",\s*\n\s*", ", ", lines)
