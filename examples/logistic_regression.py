"""Bayesian logistic regression: a mean-field fit, then draws from r, against NUTS.

A mean-field guide (AutoNormal) is too narrow as soon as the posterior is correlated. `resample` takes the fitted
guide as it is, rejects what it proposes too often, and widens it; the price is the acceptance rate.

Measured with the settings below (relative error of the posterior standard deviations against 10,000 draws of NUTS,
mean over the 4 weights):

@FIGURES@

The gain depends on how wrong the guide is: see the README of this directory for a case where it is smaller.

Run `python examples/logistic_regression.py`; it writes logistic_regression.png.
"""
