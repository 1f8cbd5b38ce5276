"""Noise of any pair and of NumPyro programs: the same model measured in two ways, and x that is a tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro_programs import PARAMS, X, guide, model, row_pair

import relbo
from relbo.lab import noise_table
from relbo.lab.noise_meters import PairMeter, ProgramMeter

SETTINGS = noise_table.Settings(num_proposals=4, num_estimates=2_000, num_warmup=3, batch_size=4, num_draws=20)


@pytest.mark.slow
def test_a_program_is_as_noisy_as_the_same_pair():
    names = ["rloo", "vimco"]
    of_pair = noise_table.run(PairMeter(row_pair(PARAMS), X), names, SETTINGS)["estimators"]
    of_program = noise_table.run(ProgramMeter(model, guide, PARAMS, (X,)), names, SETTINGS)["estimators"]
    rows = {row["estimator"]: row for row in of_program}
    for row in of_pair:
        other = rows[row["estimator"]]
        assert other["mean_num_proposals"] == row["mean_num_proposals"] == 4
        # a pair's gradient is that of the mean over 4 rows, a program's that of the sum; both pairs share their
        # parameters between model and proposal, so all of it is compared. Known to some 3% each.
        ratio = other["phi"]["variance"] / row["phi"]["variance"] / 16
        assert abs(ratio - 1) < 0.25, row["estimator"]
        assert other["theta"]["signal_to_noise"] == pytest.approx(row["theta"]["signal_to_noise"], rel=0.2)


@pytest.mark.slow
def test_what_a_program_can_serve():
    meter = ProgramMeter(model, guide, PARAMS, (X,))
    names = noise_table.usable(meter)
    assert {"rloo", "vrs", "vrs-budget", "vimco", "nvil"} <= set(names)
    assert not {"wake-sleep", "rebar", "pathwise", "disarm"} & set(names)
    assert meter.theta == {"prior", "means"} and meter.num_data == 4
    found = noise_table.run(meter, ["vrs-budget"], SETTINGS)
    (row,) = found["estimators"]
    assert row["num_warmup"] == 3 and 4 <= row["mean_num_proposals"] < 20


@pytest.mark.slow
def test_x_may_be_a_dictionary():
    class Model(relbo.AbstractModel):
        weight: jax.Array

        def log_joint(self, x, z):
            return -0.5 * (x["y"] - self.weight * z - x["offset"][0]) ** 2 - jnp.log(2.0)

        def sample(self, key):
            return {"y": jnp.zeros(()), "offset": jnp.zeros(2)}, jnp.zeros(())

    class Proposal(relbo.AbstractProposal):
        bias: jax.Array

        def sample(self, key, x):
            return jax.random.bernoulli(key, jax.nn.sigmoid(self.bias + x["y"])).astype(float)

        def log_prob(self, z, x):
            return jax.nn.log_sigmoid((2 * z - 1) * (self.bias + x["y"]))

    pair = relbo.Pair(Model(jnp.array(1.0)), Proposal(jnp.array(0.2)))
    x = {"y": np.linspace(-1, 1, 8), "offset": np.ones((8, 2))}
    found = noise_table.run(PairMeter(pair, x), ["rloo", "nvil"], SETTINGS)
    assert len(found["estimators"]) == 2 and found["recommendation"].startswith(("Take rloo", "No unbiased"))
