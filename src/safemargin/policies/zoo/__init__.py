"""The agents bundled with the package, and a card that describes each of them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from safemargin.errors import InvalidInput, did_you_mean


def zoo_agents() -> list[dict[str, Any]]:
    """Return the cards of all bundled agents: environment, algorithm, score, how it was made."""
    cards = [entry for entry in files(__name__).iterdir() if entry.name.endswith(".json")]
    return [
        json.loads(card.read_text(encoding="utf-8"))
        for card in sorted(cards, key=lambda entry: entry.name)
    ]


def zoo_card(name: str) -> dict[str, Any]:
    """Return the card of one bundled agent."""
    cards = {str(card["name"]): card for card in zoo_agents()}
    if name not in cards:
        raise InvalidInput(f"no bundled agent is called {name!r}; {did_you_mean(name, cards)}")
    return cards[name]


def zoo_path(name: str) -> Path:
    """Return the path of a bundled agent's ONNX file."""
    return Path(str(files(__name__) / f"{zoo_card(name)['name']}.onnx"))


def zoo_margins_path(name: str) -> Path:
    """Return the path of the margins that come with a bundled agent."""
    path = Path(str(files(__name__) / "margins" / f"{zoo_card(name)['name']}.json"))
    if not path.exists():
        known = [card["name"] for card in zoo_agents() if "margins" in card]
        raise InvalidInput(f"no margins come with {name}; they come with {', '.join(known)}")
    return path
