"""The policies of all agents of one game, which a user's function returns."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from safemargin.core.importing import locate
from safemargin.errors import InvalidInput, errors_as
from safemargin.policies.base import Policy, ScoreKind
from safemargin.policies.loading import load_policy

SCHEME = "team"


def find_team(source: Any) -> Mapping[str, Any] | None:
    """Return the policies by agent that a text names, or None if it names something else."""
    found = source
    if isinstance(source, str):
        file, colon, _ = source.rpartition(":")
        if not colon or (not file.endswith(".py") and "." not in file.partition(":")[0]):
            return None  # a policy's own file
        found = locate(source, what="team")
    if callable(found) and not isinstance(found, Policy):
        with errors_as(InvalidInput, f"team {source}: making it failed:"):
            found = found()
    return found if isinstance(found, Mapping) else None


def load_team(source: Any, agents: Iterable[str]) -> dict[str, Policy]:
    """Load the policies of these agents; each chooses only among legal actions."""
    team = find_team(source)
    if team is None:
        raise InvalidInput(
            f"team {source!r}: expected a function that returns one policy for each agent, as "
            "{'player_1': 'agent.onnx', …}"
        )
    agents = list(agents)
    missing = [agent for agent in agents if agent not in team]
    if missing:
        named = ", ".join(map(str, team)) or "nobody"
        raise InvalidInput(
            f"team {source!r} names no policy for {', '.join(missing)} (it names {named}); give "
            "every agent of the game one"
        )
    loaded: dict[int, Policy] = {}
    for agent in agents:
        given = team[agent]
        if id(given) not in loaded:
            loaded[id(given)] = _masked(load_policy(given))
    return {agent: loaded[id(team[agent])] for agent in agents}


def member_of(agent: str, source: str) -> str:
    """Return the text that names the policy of one agent of a team."""
    return f"{SCHEME}:{agent}:{source}"


def load_member(
    rest: str,
    *,
    kind: ScoreKind | None = None,
    identity: str | None = None,
    **options: Any,
) -> Policy:
    """Load the policy that 'team:AGENT:file.py:function' names."""
    agent, _, source = rest.partition(":")
    found = load_team(source, [agent])[agent]
    if "normalize" in options:
        raise InvalidInput(
            f"team {source!r}: --normalize is for one policy; let the function return "
            "load_policy(file, normalize=…) for those that need it"
        )
    if kind not in (None, found.kind):
        raise InvalidInput(
            f"team {source!r}: the scores of {agent}'s policy are of kind {found.kind!r}, not "
            f"{kind!r}"
        )
    found.description = f"{agent} of {source}: {found.description}"
    if identity is not None:
        found.identity = identity
    return found


def _masked(policy: Policy) -> Policy:
    """Return a copy that leaves out what the game calls illegal, as its players have to."""
    own = copy.copy(policy)
    own.uses_mask = True
    return own
