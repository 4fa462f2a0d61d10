"""The agents that ship with the package, and a card for each."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from safemargin.errors import InvalidInput, did_you_mean


def zoo_agents() -> list[dict[str, Any]]:
    """The cards of all bundled agents, by name: environment, algorithm, score, how it was made."""
    cards = [entry for entry in files(__name__).iterdir() if entry.name.endswith(".json")]
    return [
        json.loads(card.read_text(encoding="utf-8"))
        for card in sorted(cards, key=lambda entry: entry.name)
    ]


def zoo_card(name: str) -> dict[str, Any]:
    """The card of one bundled agent."""
    cards = {str(card["name"]): card for card in zoo_agents()}
    if name not in cards:
        raise InvalidInput(f"no bundled agent is called {name!r}; {did_you_mean(name, cards)}")
    return cards[name]


def zoo_path(name: str) -> Path:
    """The ONNX file of a bundled agent."""
    return Path(str(files(__name__) / f"{zoo_card(name)['name']}.onnx"))
