"""How many mistakes can a reinforcement-learning agent afford right now?"""

__version__ = "0.1.0"
