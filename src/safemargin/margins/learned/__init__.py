"""Learned proxies: a small model of the losses, trained on a study's own measurements.

- `probe`: the finished model as a margins file carries it, and its evaluation (numpy only).
- `models`: ridge regression and a small ensemble of networks, and what they predict.
- `crossfit`: predictions for moments that a model has not seen, and the choice among models.

To add a model, write a class with `fit` in `models` and add it to `CANDIDATES`.
"""
