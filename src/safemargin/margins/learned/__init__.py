"""Learned proxies: a small model of the losses, trained on a study's own measurements.

- `probe`: the finished model as a margins file carries it, and its evaluation (numpy only).
- `models`: ridge regression and a small ensemble of networks, and what they predict.
- `crossfit`: predictions for moments that a model has not seen.
- `choosing`: the choice among models, by the margins that their values would grant.

To add a model, write a function in `models` that returns its layers (`probe` evaluates affine
layers with max(0, ·) in between), call it in `fit_networks`, and name it in `RECIPES`; to predict
something else, add a function to `TARGETS`.
"""
