"""Exports an agent of sample-factory to ONNX, with its normalisation and its memory.

Run it where sample-factory is installed, with the options of the training:

    PYTORCH_JIT=0 python export.py --algo=APPO --env=CartPole-v1 --experiment=cart

It writes agent.onnx. PYTORCH_JIT=0 keeps sample-factory from compiling its layers, which the
exporter cannot read. For environments of your own, import what registers them instead of
`sf_examples.train_gym_env`.
"""

import sys

import torch
from sample_factory.algo.learning.learner import Learner
from sample_factory.algo.utils.make_env import make_env_func_batched
from sample_factory.cfg.arguments import load_from_checkpoint
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.model.model_utils import get_rnn_size
from sample_factory.utils.attr_dict import AttrDict
from sf_examples.train_gym_env import parse_custom_args, register_custom_components


class Exported(torch.nn.Module):
    """The agent, its normalisation and its memory as one network."""

    def __init__(self, agent):
        super().__init__()
        self.agent = agent

    def forward(self, observations, memory_0):
        seen = self.agent.normalize_obs({"obs": observations.clone()})
        head, after = self.agent.forward_core(self.agent.forward_head(seen), memory_0)
        found = self.agent.forward_tail(head, values_only=False, sample_actions=False)
        return found["action_logits"], after


register_custom_components()
cfg = load_from_checkpoint(parse_custom_args(sys.argv[1:], evaluation=True))
env = make_env_func_batched(cfg, AttrDict(worker_index=0, vector_index=0, env_id=0))
agent = create_actor_critic(cfg, env.observation_space, env.action_space).eval()
newest = Learner.get_checkpoints(Learner.checkpoint_dir(cfg, 0))
agent.load_state_dict(Learner.load_checkpoint(newest, torch.device("cpu"))["model"])
batch = {0: torch.export.Dim("batch")}
torch.onnx.export(
    Exported(agent),
    (torch.zeros(2, *env.observation_space["obs"].shape), torch.zeros(2, get_rnn_size(cfg))),
    "agent.onnx",
    input_names=["observations", "memory_0"],
    output_names=["logits", "memory_0_out"],
    dynamic_shapes=(batch, batch),
    external_data=False,
)
