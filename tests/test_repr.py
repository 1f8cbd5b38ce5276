"""What a notebook shows of a result: its summary, not its arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo

X = np.random.default_rng(0).integers(0, 2, (40, 6)).astype(np.float64)


@pytest.fixture(scope="module")
def pair():
    return relbo.sbn(jax.random.key(0), [3], jnp.full(6, 0.5))


def is_table(html, *words):
    return html.startswith("<table") and html.count("<tr>") == html.count("</tr>") and all(w in html for w in words)


def test_fit_result(pair):
    result = relbo.fit(
        pair, relbo.RLOO(2), X, num_epochs=50, batch_size=8, log_every=1, valid=X[:8], valid_bound="elbo"
    )
    lines = repr(result).splitlines()
    assert len(lines) < 10 and max(map(len, lines)) < 100
    assert "finished" in lines[0] and "250" in lines[0]
    assert f"{result.best_bound:.2f}" in repr(result) and f"{result.metrics[-1]['bound']:.2f}" in repr(result)
    assert is_table(result._repr_html_(), "finished", f"{result.best_bound:.2f}")
    assert "without" not in repr(result)
    plain = relbo.fit(pair, relbo.RLOO(2), X, num_epochs=0, batch_size=8)
    assert "0 steps" in repr(plain) and is_table(plain._repr_html_())


def test_estimate(pair):
    found = relbo.evaluate(pair, X, ["elbo", "rs:2"], key=jax.random.key(0), repeats=2)
    for name, estimate in found.items():
        assert "\n" not in repr(estimate) and len(repr(estimate)) < 120
        assert repr(estimate).startswith(f"Estimate({name}: {estimate.mean:.2f} +- ")
        assert is_table(estimate._repr_html_(), name, f"{estimate.mean:.2f}")
    assert "acceptance" in found["rs:2"]._repr_html_()
    alone = relbo.evaluate(pair, X[:1], "elbo", key=jax.random.key(0), repeats=1)["elbo"]
    assert "1 datapoint" in repr(alone) and "nan" not in repr(alone)


def test_posterior(pair):
    draws = relbo.posterior(jax.random.key(0), pair, X[:4], rate=0.5, num_samples=20, num_draws=50)
    assert repr(draws) == draws.summary()
    assert is_table(draws._repr_html_(), "acceptance rate", "largest Pareto k-hat")
