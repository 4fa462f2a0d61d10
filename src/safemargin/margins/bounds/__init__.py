"""Upper bounds b(p, n) on the loss given the proxy: one module per method.

To add a method, write a module here with `fit_NAME(sample: Sample, options: Options) -> Bound` and
register it in `safemargin.margins.methods.METHODS`; the command line, `compare` and the tests of
all methods (tests/margins/test_bounds.py) find it there.

- `sample`: what a fitter receives, the checked moments (`Sample`) and its settings (`Options`).
- `table`: what a fitter returns, the table of the bound (`Bound`); build it with `sample.bound`.
- `conformal`: turns any percentile curve into a calibrated bound (`fit_calibrated_curve`). A
  method that only guesses percentiles is just a curve, as `calibrated`, `isotonic` and `boosted`
  show; `METHODS` hands it on.
- `tolerance`, `paper` and `granted` (the promise about the margin itself) fill their tables
  themselves.
- `ranks`: the order of the moments by proxy, and folds.
"""
