"""The bundled agents as a table, and the card of one as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from safemargin.cli.console import print_records
from safemargin.core.text import duration
from safemargin.policies.zoo import zoo_path

Card = dict[str, Any]

SUMMARY = (
    *("name", "algorithm", "environment", "mean_score", "score_sd", "games"),
    *("observation", "kind", "size_bytes", "identity"),
)
"""The entries of a card that `safemargin zoo --json` prints."""

WIDTH = 100
LABEL = 14
CHOICES = {"epsilon": "1 % random"}
"""Ways to choose actions in an evaluation, where the name needs an explanation."""
BLOCKS = "▁▂▃▄▅▆▇█"


def summary(card: Card) -> Card:
    """Return the main entries of a card, for programs."""
    return {name: card[name] for name in SUMMARY}


def print_agents(cards: Sequence[Card]) -> None:
    """Print all bundled agents, one per row."""
    print_records(
        "Bundled agents: use one as zoo:NAME",
        cards,
        ("name", lambda card: card["name"]),
        ("environment", lambda card: card["environment"]),
        ("algorithm", lambda card: card["algorithm"]),
        ("score ± sd (games)", lambda card: f"{_score(card)} ({card['games']})"),
        ("observation", lambda card: card["observation"]),
        ("size", lambda card: file_size(card["size_bytes"])),
    )


def print_card(card: Card) -> None:
    """Print one card, with a labelled line for each entry."""
    print(card["name"])
    for label, text in _lines(card):
        print(
            textwrap.fill(
                text,
                WIDTH,
                initial_indent=f"  {label:<{LABEL}}",
                subsequent_indent=" " * (LABEL + 2),
                break_long_words=False,
                break_on_hyphens=False,
            )
        )


def _lines(card: Card) -> Iterator[tuple[str, str]]:
    for name in ("environment", "algorithm", "network", "observation"):
        if name in card:
            yield name, card[name]
    yield "actions", f"{len(card['actions'])}: {', '.join(card['actions'])}"
    yield "scores", card["kind"]
    yield (
        "score",
        f"{_score(card)} over {card['games']} games"
        + (f": {card['score_note']}" if "score_note" in card else ""),
    )
    for choice, result in card.get("evaluation", {}).items():
        yield f"  {CHOICES.get(choice, choice)}", _evaluation(result)
    yield "trained", _training(card)
    pieces = card.get("pieces") or [{"first_step": 0, "command": card["command"]}]
    for piece in pieces:
        first = piece["first_step"]
        yield "command", (f"from step {first:,} on: " if first else "") + piece["command"]
    if "curve" in card:
        yield from _curve(card)
    yield "file", f"{zoo_path(card['name'])}, {file_size(card['size_bytes'])}"
    if "half_precision" in card:
        yield "weights", _weights(card)
    yield "identity", card["identity"]
    if "margins" in card:
        yield from _margins(card["name"], card["margins"])
    for note in card.get("notes", []):
        yield "note", note
    yield "use", f"safemargin collect {card['environment']} zoo:{card['name']} -o runs/STUDY"


def _margins(name: str, about: Card) -> Iterator[tuple[str, str]]:
    moments = ", ".join(f"{count} {kind}" for kind, count in about["moments"].items() if count)
    yield (
        "margins",
        f"zoo:{name}: proxy {about['proxy']}, confidence {about['confidence']:g}, from {moments} "
        f"moments ({about['command']})",
    )
    for tolerance, (granted, affordable) in about["mean_margin"].items():
        yield f"  at {tolerance}", f"grants {granted:.1f} of {affordable:.1f} affordable actions"


def _score(card: Card) -> str:
    return f"{_points(card['mean_score'])} ± {_points(card['score_sd'])}"


def _evaluation(result: dict[str, Any]) -> str:
    distinct = result.get("distinct_games")
    per_life = result.get("clipped_return_per_life")
    return (
        f"{_points(result['mean'])} ± {_points(result['sd'])}, from {_points(result['min'])} to "
        f"{_points(result['max'])} over {result['games']} games"
        + (f" ({distinct} distinct)" if distinct else "")
        + (f"; {per_life:g} clipped reward a life, " if per_life is not None else "; ")
        + f"{result['steps_per_game']:,.0f} steps a game"
    )


def _training(card: Card) -> str:
    text = f"{card['steps']:,} steps"
    if "frames" in card:
        text += f" ({card['frames']:,} frames)"
    if "wall_seconds" in card:
        text += f" in {duration(card['wall_seconds'])} on {card['machine']}"
    return f"{text}; seed {card['seed']}"


def _curve(card: Card) -> Iterator[tuple[str, str]]:
    """Draw the scores during training as a row of blocks, evenly spaced over the steps."""
    curve = card["curve"]
    known = [
        (step, score)
        for step, score in zip(curve["steps"], curve["score"], strict=True)
        if score is not None
    ]
    if not known:
        return
    steps, scores = np.array(known).T
    lowest, highest, last = scores.min(), scores.max(), known[-1][0]
    columns = min(60, len(known))
    at = last * np.arange(1, columns + 1) / columns
    nearest = scores[np.abs(np.subtract.outer(at, steps)).argmin(axis=1)]  # [columns]
    heights = (nearest - lowest) / ((highest - lowest) or 1.0) * (len(BLOCKS) - 1)
    yield "curve", "".join(BLOCKS[round(height)] for height in heights)
    resumed = len(curve["resumed_at"])
    yield (
        "",
        f"score in training from {_points(lowest)} to {_points(highest)} over {last:,} steps"
        + (f"; resumed {resumed} ×, where the running mean starts again" if resumed else ""),
    )


def _weights(card: Card) -> str:
    compared = card["half_precision"]
    others = compared["other_greedy_actions"]
    text = (
        f"{card['weights']}; on {compared['observations']:,} observations "
        f"{others or 'no'} greedy action{'' if others == 1 else 's'} "
        f"differ{'s' if others == 1 else ''} from those of the float32 network"
    )
    if others:
        text += f", where its two best scores lie within {compared['largest_gap_of_these']:g}"
    return text


def file_size(size: int) -> str:
    """Write a number of bytes with its unit."""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _points(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".") if abs(value) < 100 else f"{value:,.0f}"
