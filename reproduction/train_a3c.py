"""Train an actor-critic agent on one Atari game: python train_a3c.py beam_rider --out DIR.

The agent is an advantage actor-critic in the manner of A3C with many games in parallel on one
machine. Groups of games take turns: while the emulator steps the others, the network acts for
one group and learns from the rollout before. Because that rollout is one policy behind, its
log-probabilities are computed again before learning: the update is clipped relative to the
recent policy and weighted by how the recent policy differs from the one that acted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import training_loop
from atari_training import DISCOUNT, OBSERVATION_SHAPE, ActorCritic, Games
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings(training_loop.Settings):
    """Sizes and coefficients of the training."""

    groups: int = 4
    games_per_group: int = 128
    rollout_steps: int = 32
    minibatch: int = 1024
    passes: int = 4
    learning_rate: float = 2.5e-4
    final_learning_rate: float = 4e-5
    entropy: float = 0.01
    final_entropy: float = 0.002
    value_weight: float = 0.25
    trace: float = 0.95
    clip: float = 0.2
    largest_weight: float = 2.0
    gradient_norm: float = 0.5

    @property
    def rollout_size(self) -> int:
        return self.games * self.rollout_steps

    @property
    def updates_per_rollout(self) -> int:
        return self.passes * self.rollout_size // self.minibatch


class Rollout:
    """The steps of all games over a while, and the observation after the last."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        shape = (settings.rollout_steps, settings.games)
        self.observations = torch.zeros(
            (shape[0] + 1, shape[1], *OBSERVATION_SHAPE), dtype=torch.uint8, device=device
        )
        self.actions = torch.zeros(shape, dtype=torch.int64, device=device)
        self.log_probabilities = torch.zeros(shape, device=device)
        self.rewards = torch.zeros(shape, device=device)
        self.ended = torch.zeros(shape, device=device)
        self.valid = torch.zeros(shape, device=device)


class Learner(training_loop.Learner):
    """The network and the data of the rollout it learns from."""

    statistic_names = ("entropy", "divergence", "value_error", "gradient")

    def __init__(self, action_count: int, settings: Settings, device: torch.device) -> None:
        self.settings = settings
        self.learning_rate = torch.tensor(settings.learning_rate, device=device)
        self.entropy_weight = torch.tensor(settings.entropy, device=device)
        super().__init__(
            ActorCritic(action_count),
            settings,
            device,
            learning_rate=self.learning_rate,
            adam_epsilon=1e-5,
        )
        size = settings.rollout_size
        self.observations = torch.zeros(
            (size, *OBSERVATION_SHAPE), dtype=torch.uint8, device=device
        )
        self.actions = torch.zeros(size, dtype=torch.int64, device=device)
        self.log_probabilities = torch.zeros(size, device=device)
        self.advantages = torch.zeros(size, device=device)
        self.returns = torch.zeros(size, device=device)
        self.weights = torch.zeros(size, device=device)
        self.chosen = torch.zeros(settings.minibatch, dtype=torch.int64, device=device)
        self.minibatches: list[Tensor] = []

    def load(self, directory: Path) -> None:
        """Continue from a checkpoint; the optimizer keeps the learning rate that can be set."""
        super().load(directory)
        self.optimizer.param_groups[0]["lr"] = self.learning_rate

    @torch.no_grad()
    def act(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions, and give their log-probabilities."""
        with self.autocast():
            logits = self.network(observations)
        log_probabilities = logits.log_softmax(-1)
        waiting_times = torch.empty_like(logits).exponential_()
        actions = (log_probabilities.exp() / waiting_times).argmax(-1)
        return actions, log_probabilities.gather(-1, actions[:, None]).squeeze(-1)

    def set_progress(self, fraction: float) -> None:
        """Move the learning rate and the entropy bonus along their linear schedules."""
        settings, fraction = self.settings, min(fraction, 1.0)
        for tensor, first, last in (
            (self.learning_rate, settings.learning_rate, settings.final_learning_rate),
            (self.entropy_weight, settings.entropy, settings.final_entropy),
        ):
            tensor.fill_(first + fraction * (last - first))

    @torch.no_grad()
    def take(self, rollout: Rollout) -> None:
        """Copy a rollout, with advantages and log-probabilities by the present network."""
        settings = self.settings
        log_probabilities = torch.zeros_like(rollout.log_probabilities)
        values = torch.zeros_like(rollout.observations[:, :, 0, 0, 0], dtype=torch.float32)
        for time_step in range(settings.rollout_steps + 1):
            with self.autocast():
                logits, values[time_step] = self.network.both(rollout.observations[time_step])
            if time_step < settings.rollout_steps:
                taken = rollout.actions[time_step][:, None]
                chosen = logits.log_softmax(-1).gather(-1, taken)
                log_probabilities[time_step] = chosen.squeeze(-1)
        going = 1.0 - rollout.ended
        errors = rollout.rewards + DISCOUNT * going * values[1:] - values[:-1]
        advantages = torch.zeros_like(errors)
        following = torch.zeros_like(errors[0])
        for time_step in reversed(range(settings.rollout_steps)):
            decay = DISCOUNT * settings.trace * going[time_step]
            following = errors[time_step] + decay * following
            advantages[time_step] = following
        valid = rollout.valid
        mean = (advantages * valid).sum() / valid.sum()
        variance = ((advantages - mean).square() * valid).sum() / valid.sum()
        ratio = (log_probabilities - rollout.log_probabilities).exp()
        self.observations.copy_(rollout.observations[:-1].flatten(0, 1))
        self.actions.copy_(rollout.actions.flatten())
        self.log_probabilities.copy_(log_probabilities.flatten())
        self.advantages.copy_(((advantages - mean) / (variance.sqrt() + 1e-6)).flatten())
        self.returns.copy_((advantages + values[:-1]).flatten())
        self.weights.copy_((valid * ratio.clamp(max=settings.largest_weight)).flatten())
        self.minibatches = [
            minibatch
            for _ in range(settings.passes)
            for minibatch in torch.randperm(settings.rollout_size, device=self.device).split(
                settings.minibatch
            )
        ]

    def _plain_update(self) -> None:
        """One step of the optimizer on the rows named by `chosen`."""
        settings, chosen = self.settings, self.chosen
        with self.autocast():
            logits, values = self.network.both(self.observations[chosen])
        log_policy = logits.log_softmax(-1)
        log_probabilities = log_policy.gather(-1, self.actions[chosen][:, None]).squeeze(-1)
        change = log_probabilities - self.log_probabilities[chosen]
        ratio, advantages, weights = change.exp(), self.advantages[chosen], self.weights[chosen]
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        gains = torch.minimum(ratio * advantages, clipped * advantages)
        entropies = -(log_policy.exp() * log_policy).sum(-1)
        squares = (values - self.returns[chosen]).square()
        losses = settings.value_weight * squares - gains - self.entropy_weight * entropies
        loss = (weights * losses).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), settings.gradient_norm)
        self.optimizer.step()
        with torch.no_grad():
            divergence = (ratio - 1 - change).mean()
            self.count(entropies.mean(), divergence, squares.mean(), norm)

    def learn(self, updates: int) -> None:
        """Do some of the updates that are due on the present rollout."""
        for _ in range(min(updates, len(self.minibatches))):
            self.chosen.copy_(self.minibatches.pop())
            self.update()


class Actors(training_loop.Actors):
    """The groups of games and the rollout they fill."""

    def __init__(self, groups: list[Games], learner: Learner) -> None:
        super().__init__(groups, learner)
        self.rollout = Rollout(learner.settings, learner.device)
        self.next_rollout = Rollout(learner.settings, learner.device)
        for index in range(len(groups)):
            self._act(index, self.rollout, 0)

    def _act(self, index: int, rollout: Rollout, time_step: int) -> None:
        """Choose and start the next step of one group."""
        group, part = self.groups[index], self.parts[index]
        observations = rollout.observations[time_step, part]
        observations.copy_(torch.from_numpy(group.observation))
        actions, log_probabilities = self.learner.act(observations)
        group.send(actions.cpu().numpy())
        rollout.actions[time_step, part] = actions
        rollout.log_probabilities[time_step, part] = log_probabilities

    def collect(self, updates_per_turn: int) -> Rollout:
        """Fill a rollout, learning from the one before in between."""
        rollout, steps = self.rollout, self.learner.settings.rollout_steps
        for time_step in range(steps):
            for index, (group, part) in enumerate(zip(self.groups, self.parts, strict=True)):
                step = group.receive()
                outcome = np.stack([step.reward, step.ended, ~step.restarted]).astype(np.float32)
                for target, row in zip(
                    (rollout.rewards, rollout.ended, rollout.valid),
                    torch.from_numpy(outcome).to(self.learner.device),
                    strict=True,
                ):
                    target[time_step, part] = row
                if time_step + 1 < steps:
                    self._act(index, rollout, time_step + 1)
                else:
                    self._act(index, self.next_rollout, 0)
                    rollout.observations[steps, part] = self.next_rollout.observations[0, part]
                self.learner.learn(updates_per_turn)
        self.rollout, self.next_rollout = self.next_rollout, rollout
        return rollout

    def play(self) -> int:
        """Fill a rollout, learning from the one before in between; take it to learn from."""
        learner, settings = self.learner, self.learner.settings
        turns = settings.rollout_steps * settings.groups
        rollout = self.collect(-(-settings.updates_per_rollout // turns))
        learner.learn(settings.updates_per_rollout)
        learner.take(rollout)
        return settings.rollout_size


if __name__ == "__main__":
    training_loop.main("Train an actor-critic agent on an Atari game.", Settings, Learner, Actors)
