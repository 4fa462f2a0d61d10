"""A fleet of agents that people watch: its state, who has which agent, and the agents run here."""

from safemargin.web.fleet.state import Fleet

__all__ = ["Fleet"]
