"""Agents as other training libraries save them, one module per library, imported when named.

`rllib` (the new API stack), `sbx`, `tianshou`, `torchrl` and `skrl` take what their library stores;
`cleanrl` brings the networks that CleanRL's files leave out, in `cleanrl_torch` and `cleanrl_flax`.
"""
