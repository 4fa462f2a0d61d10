"""Train a prioritised double dueling Q agent on an Atari game: train_apex.py pong --out DIR.

This is Ape-X on one machine: many games, each explored with its own share of random actions,
fill a prioritised replay memory on the GPU, and one learner trains from it in between. The memory
is not saved: a resumed run fills it anew before it learns.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import training_loop
from atari_training import DISCOUNT, OBSERVATION_SHAPE, DuelingQ, Games
from torch import Tensor, nn

LOOK_AHEAD = 3
STACK = OBSERVATION_SHAPE[0]


@dataclass(frozen=True)
class Settings(training_loop.Settings):
    """Sizes and coefficients of the training."""

    groups: int = 2
    games_per_group: int = 128
    capacity: int = 1_000_000
    first_learning: int = 50_000
    batch: int = 512
    updates_per_turn: int = 3
    target_period: int = 1_000
    learning_rate: float = 1e-4
    adam_epsilon: float = 1e-5
    priority_power: float = 0.6
    importance_power: float = 0.4
    gradient_norm: float = 40.0


@dataclass
class Batch:
    """Transitions for one update, in tensors that stay where they are."""

    observations: Tensor
    next_observations: Tensor
    actions: Tensor
    returns: Tensor
    discounts: Tensor
    weights: Tensor
    errors: Tensor


class Replay:
    """A ring of single frames for every game, with a priority for each transition.

    A transition that cannot be drawn (incomplete, overwritten or the start of a new game)
    has priority zero.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings = settings
        self.length = settings.capacity // settings.games
        shape = (self.length, settings.games)
        self.frames = torch.zeros(
            (*shape, *OBSERVATION_SHAPE[1:]), dtype=torch.uint8, device=device
        )
        self.ages = torch.zeros(shape, dtype=torch.int64, device=device)
        self.actions = torch.zeros(shape, dtype=torch.int64, device=device)
        self.rewards = torch.zeros(shape, device=device)
        self.going = torch.zeros(shape, device=device)
        self.valid = torch.zeros(shape, device=device)
        self.taken_values = torch.zeros(shape, device=device)
        self.best_values = torch.zeros(shape, device=device)
        self.priorities = torch.zeros(shape, device=device)
        self.offsets = torch.arange(1 - STACK, 1, device=device)

    def write_action(
        self,
        time_step: int,
        part: slice,
        frames: Tensor,
        ages: Tensor,
        actions: Tensor,
        values: Tensor,
    ) -> None:
        """Store what was seen and done, and complete the transition some steps back."""
        slot = time_step % self.length
        # These older transitions need frames that are overwritten now.
        stale = [(slot + ahead) % self.length for ahead in range(STACK)]
        self.priorities[stale, part] = 0.0
        self.frames[slot, part] = frames
        self.ages[slot, part] = ages
        self.actions[slot, part] = actions
        self.taken_values[slot, part] = values.gather(1, actions[:, None]).squeeze(1)
        self.best_values[slot, part] = values.max(1).values
        if time_step >= LOOK_AHEAD + STACK:
            start = torch.full_like(actions, (time_step - LOOK_AHEAD) % self.length)
            game = torch.arange(part.start, part.stop, device=actions.device)
            returns, discounts = self.look_ahead(start, game)
            target = returns + discounts * self.best_values[slot, part]
            error = target - self.taken_values[start, game]
            self.set_priorities(start, game, error)

    def write_outcome(
        self, time_step: int, part: slice, rewards: Tensor, going: Tensor, valid: Tensor
    ) -> None:
        """Store what the action of this step brought."""
        slot = time_step % self.length
        self.rewards[slot, part] = rewards
        self.going[slot, part] = going
        self.valid[slot, part] = valid

    def look_ahead(self, slot: Tensor, game: Tensor) -> tuple[Tensor, Tensor]:
        """Return the discounted rewards of the next steps, and the factor of the value then."""
        returns = torch.zeros(slot.shape, device=slot.device)
        factor = torch.ones_like(returns)
        for ahead in range(LOOK_AHEAD):
            at = (slot + ahead) % self.length
            returns = returns + factor * self.rewards[at, game]
            factor = factor * DISCOUNT * self.going[at, game]
        return returns, factor

    def set_priorities(self, slot: Tensor, game: Tensor, error: Tensor) -> None:
        """Set the priorities of some transitions from their temporal-difference errors."""
        priority = (error.abs() + 1e-3) ** self.settings.priority_power
        self.priorities[slot, game] = priority * self.valid[slot, game]

    def stacked(self, slot: Tensor, game: Tensor) -> Tensor:
        """Return the observations at some slots; frames from before the game's start are black."""
        slots = (slot[:, None] + self.offsets) % self.length
        known = self.ages[slot, game][:, None] + self.offsets >= 0
        return self.frames[slots, game[:, None]] * known[:, :, None, None].to(torch.uint8)

    def sample(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Fill the batch with transitions drawn by priority; give their slots and games."""
        count = batch.actions.shape[0]
        sums = self.priorities.flatten().cumsum(0, dtype=torch.float64)
        strata = torch.arange(count, device=sums.device, dtype=torch.float64)
        points = (strata + torch.rand_like(strata)) / count * sums[-1]
        index = torch.searchsorted(sums, points, right=True).clamp(max=sums.numel() - 1)
        slot, game = index // self.settings.games, index % self.settings.games
        probability = (self.priorities[slot, game] / sums[-1]).clamp(min=1e-12)
        weights = probability.float() ** -self.settings.importance_power
        returns, discounts = self.look_ahead(slot, game)
        batch.observations.copy_(self.stacked(slot, game))
        batch.next_observations.copy_(self.stacked((slot + LOOK_AHEAD) % self.length, game))
        batch.actions.copy_(self.actions[slot, game])
        batch.returns.copy_(returns)
        batch.discounts.copy_(discounts)
        batch.weights.copy_(weights / weights.max())
        return slot, game


class Learner(training_loop.Learner):
    """The network, its target copy and the batch it learns from."""

    statistic_names = ("error", "value", "gradient")

    def __init__(self, action_count: int, settings: Settings, device: torch.device) -> None:
        self.settings = settings
        super().__init__(
            DuelingQ(action_count),
            settings,
            device,
            learning_rate=settings.learning_rate,
            adam_epsilon=settings.adam_epsilon,
        )
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        size = settings.batch
        images = torch.zeros((size, *OBSERVATION_SHAPE), dtype=torch.uint8, device=device)
        numbers = torch.zeros(size, device=device)
        self.batch = Batch(
            images,
            images.clone(),
            torch.zeros(size, dtype=torch.int64, device=device),
            *(numbers.clone() for _ in range(4)),
        )
        self.updates = 0

    def load(self, directory: Path) -> None:
        """Continue from a checkpoint, with the target network up to date."""
        super().load(directory)
        self.copy_to_target()

    def copy_to_target(self) -> None:
        """Let the target network catch up."""
        self.target.load_state_dict(self.network.state_dict())

    @torch.no_grad()
    def values(self, observations: Tensor) -> Tensor:
        """Return the action values of some observations."""
        with self.autocast():
            return self.network(observations)

    def _plain_update(self) -> None:
        """One step of the optimizer on the batch."""
        batch = self.batch
        with torch.no_grad(), self.autocast():
            best = self.network(batch.next_observations).argmax(1, keepdim=True)
            next_values = self.target(batch.next_observations).gather(1, best).squeeze(1)
            targets = batch.returns + batch.discounts * next_values
        with self.autocast():
            values = self.network(batch.observations)
        taken = values.gather(1, batch.actions[:, None]).squeeze(1)
        losses = nn.functional.smooth_l1_loss(taken, targets, reduction="none")
        self.optimizer.zero_grad(set_to_none=True)
        (batch.weights * losses).mean().backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.gradient_norm)
        self.optimizer.step()
        with torch.no_grad():
            batch.errors.copy_(targets - taken)
            self.count(batch.errors.abs().mean(), taken.mean(), norm)

    def learn(self, replay: Replay) -> None:
        """Draw a batch, update the network and write the new priorities back."""
        slot, game = replay.sample(self.batch)
        self.update()
        replay.set_priorities(slot, game, self.batch.errors)
        self.updates += 1
        if self.updates % self.settings.target_period == 0:
            self.copy_to_target()


class Actors(training_loop.Actors):
    """The groups of games, each game with its own share of random actions."""

    def __init__(self, groups: list[Games], learner: Learner) -> None:
        super().__init__(groups, learner)
        settings, device = learner.settings, learner.device
        self.replay = Replay(settings, device)
        ranks = torch.arange(settings.games, device=device) / max(settings.games - 1, 1)
        # Spread the shares over both groups.
        self.random_shares = (0.4 ** (1 + 7 * ranks)).view(settings.games_per_group, -1).T.flatten()
        self.ages = torch.zeros(settings.games, dtype=torch.int64, device=device)
        self.time_step = 0
        for index in range(len(groups)):
            self._act(index, 0)

    @torch.no_grad()
    def _act(self, index: int, time_step: int) -> None:
        group, part = self.groups[index], self.parts[index]
        observations = torch.from_numpy(group.observation).to(self.learner.device, copy=True)
        values = self.learner.values(observations)
        greedy = values.argmax(1)
        any_action = torch.randint_like(greedy, values.shape[1])
        random = torch.rand(values.shape[0], device=values.device) < self.random_shares[part]
        actions = torch.where(random, any_action, greedy)
        group.send(actions.cpu().numpy())
        self.replay.write_action(
            time_step, part, observations[:, -1], self.ages[part], actions, values
        )

    def play(self) -> int:
        """Take one step in all games, learning in between once the memory is filled enough."""
        settings = self.learner.settings
        learning = self.time_step * settings.games >= settings.first_learning
        for index, (group, part) in enumerate(zip(self.groups, self.parts, strict=True)):
            step = group.receive()
            outcome = np.stack([step.reward, ~step.ended, ~step.restarted]).astype(np.float32)
            rewards, going, valid = torch.from_numpy(outcome).to(self.learner.device)
            self.replay.write_outcome(self.time_step, part, rewards, going, valid)
            self.ages[part] = (self.ages[part] + 1) * valid.long()
            self._act(index, self.time_step + 1)
            for _ in range(settings.updates_per_turn if learning else 0):
                self.learner.learn(self.replay)
        self.time_step += 1
        return settings.games


if __name__ == "__main__":
    training_loop.main("Train a Q agent on an Atari game.", Settings, Learner, Actors)
