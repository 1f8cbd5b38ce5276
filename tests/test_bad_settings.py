"""Bad settings are refused at construction or first call, with what was expected and what was got."""

import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from helpers import table_pair

import relbo
from relbo import bounds, exact, rejection, thresholds
from relbo.streams import split_streams
from relbo.view import Proposals, view_of

KEY = jax.random.key(0)
PAIR = table_pair(0, num_x=3)
MEAN = jnp.asarray([0.5, 0.5])

CONSTRUCTION = {
    "VRS S=1": (lambda: relbo.VRS(1), ">= 2", "1"),
    "VRS S=0": (lambda: relbo.VRS(0), ">= 2", "0"),
    "VRS S=True": (lambda: relbo.VRS(True), ">= 2", "True"),
    "RLOO S=1": (lambda: relbo.RLOO(1), ">= 2", "1"),
    "VIMCO S=1": (lambda: relbo.VIMCO(1), ">= 2", "1"),
    "VRS N < S": (lambda: relbo.VRS(3, num_proposals=2), "num_proposals must be an integer >= num_samples = 3", "2"),
    "VRSRaw N = True": (lambda: relbo.VRSRaw(2, num_proposals=True), "VRSRaw: num_proposals", "True"),
    "VRS threshold and rate": (lambda: relbo.VRS(2, 3.0, rate=0.5), "by threshold= or by rate=, not by both", "0.5"),
    "VRSAll threshold and rate": (lambda: relbo.VRSAll(2, "fixed:3", rate=0.5), "not by both", "fixed:3"),
    "RS threshold and rate": (lambda: relbo.RS(2, 3.0, rate=0.5), "not by both", "0.5"),
    "VRS rate": (lambda: relbo.VRS(2, rate=1.5), "Rate: rate must be a number in (0, 1), or a schedule", "1.5"),
    "VRS rate=0": (lambda: relbo.VRS(2, rate=0.0), "(0, 1)", "0.0"),
    "VRS T nan": (lambda: relbo.VRS(2, math.nan), "real number or +inf", "nan"),
    "words": (lambda: relbo.VRS(2, "speed:3"), "rate:RATE, quantile:GAMMA or fixed:T", "'speed:3'"),
    "words without number": (lambda: relbo.VRS(2, "rate"), "rate:RATE, quantile:GAMMA or fixed:T", "'rate'"),
    "words with another": (lambda: relbo.VRS(2, "rate:fast"), "rate:RATE, quantile:GAMMA or fixed:T", "'rate:fast'"),
    "words out of range": (lambda: relbo.VRS(2, "rate:2"), "Rate: rate must be a number in (0, 1)", "2.0"),
    "words quantile": (lambda: relbo.VRS(2, "quantile:1"), "Quantile: gamma must be a number in (0, 1)", "1.0"),
    "words fixed": (lambda: relbo.VRS(2, "fixed:nan"), "real number or +inf", "nan"),
    "no threshold": (lambda: thresholds.as_threshold(None), "set by threshold= or by rate=", "None"),
    "bound in words": (lambda: bounds.parse("is:0"), "elbo, is:K or rs:K", "'is:0'"),
    "IS k=0": (lambda: relbo.IS(0), ">= 1", "0"),
    "RS k=0": (lambda: relbo.RS(0), ">= 1", "0"),
    "Rate array": (lambda: relbo.Rate(jnp.asarray(1.0)), "(0, 1)", "1."),
    "Rate warmup": (lambda: relbo.Rate(0.5, warmup=-1), "Rate: warmup must be an integer >= 0", "-1"),
    "Quantile warmup": (lambda: relbo.Quantile(0.5, warmup=-1), "Quantile: warmup must be an integer >= 0", "-1"),
    "Fixed warmup": (lambda: relbo.Fixed(0.5, warmup=-1), "Fixed: warmup must be an integer >= 0", "-1"),
    "schedule without step": (
        lambda: relbo.Rate(lambda step: 0.5).solve(jnp.zeros((1, 3)), relbo.Soft()),
        "Rate: rate must be a number outside training",
        "a schedule",
    ),
    "schedule of T without step": (
        lambda: relbo.Fixed(lambda step: 0.5).solve(jnp.zeros((1, 3)), relbo.Soft()),
        "Fixed: T must be a number outside training",
        "a schedule",
    ),
    **{
        f"Gains {name}": (
            lambda name=name: relbo.Gains(**{name: 0.0}),
            f"Gains: {name} must be a finite number > 0",
            "0.0",
        )
        for name in ("floor", "memory", "own", "fewest", "stranger", "chance", "lead")
    },
    "Concrete temperature": (lambda: relbo.Concrete(temperature=0.0), "Concrete: temperature", "0.0"),
    "REBAR temperature": (lambda: relbo.REBAR(temperature=-1.0), "REBAR: temperature", "-1.0"),
    "VRS max_rounds": (lambda: relbo.VRS(2, max_rounds=0), ">= 1", "0"),
    "gamma 0": (lambda: relbo.Quantile(0.0), r"(0, 1)", "0.0"),
    "gamma 1": (lambda: relbo.Quantile(1.0), r"(0, 1)", "1.0"),
    "gamma -0.1": (lambda: relbo.Quantile(-0.1), r"(0, 1)", "-0.1"),
    "gamma nan": (lambda: relbo.Quantile(math.nan), r"(0, 1)", "nan"),
    "Quantile num_draws": (lambda: relbo.Quantile(0.5, 0), ">= 1", "0"),
    "Quantile every": (lambda: relbo.Quantile(0.5, 10, 0), ">= 1", "0"),
    "Rate 0": (lambda: relbo.Rate(0.0), r"(0, 1)", "0.0"),
    "Rate 1": (lambda: relbo.Rate(1.0), r"(0, 1)", "1.0"),
    "Rate num_draws": (lambda: relbo.Rate(0.5, 0), ">= 1", "0"),
    "Fixed nan": (lambda: relbo.Fixed(math.nan), "real number or +inf", "nan"),
    "Fixed -inf": (lambda: relbo.Fixed(-math.inf), "real number or +inf", "-inf"),
    "sharpness 0": (lambda: relbo.Soft(0.0), "> 0", "0.0"),
    "sharpness -1": (lambda: relbo.Soft(-1.0), "> 0", "-1.0"),
    "sharpness inf": (lambda: relbo.Soft(math.inf), "finite", "inf"),
    "sharpness nan": (lambda: relbo.Soft(math.nan), "> 0", "nan"),
    "sbn no layer": (lambda: relbo.sbn(KEY, (), MEAN), ">= 1", "()"),
    "sbn width 0": (lambda: relbo.sbn(KEY, (3, 0), MEAN), ">= 1", "(3, 0)"),
    "sbn num_hidden": (lambda: relbo.sbn(KEY, (3,), MEAN, num_hidden=-1), ">= 0", "-1"),
    "exact.tuples": (lambda: exact.tuples(3, 0), ">= 1", "0"),
    "log_z_counted": (lambda: bounds.log_z_counted(1, jnp.asarray([3])), ">= 2", "1"),
    "Rate with Always": (lambda: step(relbo.VRS(2, relbo.Rate(0.5), relbo.Always())), "able to reject", "Always()"),
}


def step(estimator, x=None, index=None, pair=PAIR, num_data=3):
    x = jnp.asarray([0, 1]) if x is None else x
    index = jnp.asarray([0, 1]) if index is None else index
    return estimator.estimate(KEY, pair, estimator.init(KEY, pair, num_data), relbo.Batch(x, index))


@pytest.mark.parametrize("name", CONSTRUCTION)
def test_refused_with_expected_and_got(name):
    call, expected, got = CONSTRUCTION[name]
    with pytest.raises(ValueError) as error:
        call()
    message = str(error.value)
    assert expected in message and got in message, message
    assert "\n" not in message and message.endswith(".")


ESTIMATORS = {
    "rloo": relbo.RLOO(2),
    "vimco": relbo.VIMCO(2),
    "fixed": relbo.VRS(2, relbo.Fixed(3.0)),
    "quantile": relbo.VRS(2, relbo.Quantile(0.5, 10, 1)),
    "rate": relbo.VRS(2, relbo.Rate(0.5, 10)),
    "online": relbo.VRS(2, relbo.Quantile(0.5, 10, None)),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(
    "x, index, expected, got",
    [
        (jnp.asarray([0, 1, 2]), jnp.asarray([0, 1]), "length 2", "(3,)"),
        (jnp.asarray(0), jnp.asarray([0]), "length 1", "()"),
        (jnp.asarray([0]), jnp.asarray(0), "(b,)", "()"),
        (jnp.asarray([0, 1]), jnp.asarray([[0, 1]]), "(b,)", "(1, 2)"),
        ({"a": jnp.zeros(2), "b": jnp.zeros((3, 2))}, jnp.asarray([0, 1]), "length 2", "(3, 2)"),
        ({}, jnp.asarray([0, 1]), "length 2", "[]"),
    ],
)
def test_shapes_that_do_not_match(name, x, index, expected, got):
    with pytest.raises(ValueError) as error:
        step(ESTIMATORS[name], x, index)
    assert expected in str(error.value) and got in str(error.value)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("rows, got", [([0, 3], "0 to 3"), ([-1, 2], "-1 to 2"), ([7, 9], "to 9")])
def test_index_out_of_range(name, rows, got):
    with pytest.raises(ValueError) as error:
        step(ESTIMATORS[name], index=jnp.asarray(rows))
    assert "[0, 3)" in str(error.value) and got in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fixed", *(pytest.param(n, marks=pytest.mark.slow) for n in ("quantile", "rate", "online"))]
)
def test_index_out_of_range_inside_a_compiled_step(name):
    estimator = ESTIMATORS[name]
    state = estimator.init(KEY, PAIR, 3)
    batch = relbo.Batch(jnp.asarray([0, 1]), jnp.asarray([0, 3]))
    with pytest.raises(Exception, match=r"batch.index must lie in \[0, (3|num_data)\)"):
        jax.block_until_ready(jax.jit(estimator.estimate)(KEY, PAIR, state, batch))


@pytest.mark.parametrize("num_data", [0, -1])
@pytest.mark.parametrize("name", ["fixed", "quantile", "rate", "online"])
def test_num_data(name, num_data):
    with pytest.raises(ValueError, match=r"num_data must be an integer >= 1, got"):
        ESTIMATORS[name].threshold.init(num_data)


class VectorModel(relbo.AbstractModel):
    def log_joint(self, x, z):
        return jnp.zeros(3)

    def sample(self, key):
        raise NotImplementedError


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_density_that_is_not_one_number(name):
    pair = relbo.Pair(VectorModel(), PAIR.proposal)
    with pytest.raises(ValueError, match=r"log_joint.*must return one number.*got shapes \(3,\) and \(\)"):
        step(ESTIMATORS[name], pair=pair)


@pytest.mark.parametrize("data_mean", [jnp.asarray(0.5), jnp.zeros((2, 2)), jnp.zeros(0)])
def test_sbn_data_mean_must_be_a_vector(data_mean):
    # under the checks of the test-suite the annotation refuses it before the function does
    with pytest.raises((ValueError, TypeError), match="data_mean"):
        relbo.sbn(KEY, (2,), data_mean)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_samples": 0, "max_rounds": 1}, "num_samples must be an integer >= 1, got 0."),
        ({"num_samples": 1, "max_rounds": 0}, "max_rounds must be an integer >= 1, got 0."),
        ({"num_samples": 4, "max_rounds": 1}, "num_proposals must be at least num_samples = 4, got 3."),
    ],
)
def test_sampler_settings(settings, message):
    view = view_of(PAIR, jnp.asarray([0, 1]))
    z = jnp.zeros((2, 3), int)
    first = Proposals(z, view.log_densities(z))
    with pytest.raises(ValueError, match=message):
        rejection.sample(view, split_streams(KEY), first, jnp.zeros(2), relbo.Soft(), **settings)


WRONG_TYPES = {
    "relbo.VRS(2.0)": "VRS: num_samples must be an integer >= 2, got 2.0.",
    "relbo.VRS(2, num_proposals=4.0)": "VRS: num_proposals must be an integer >= num_samples = 2, got 4.0.",
    "relbo.VRS(2, [0.5])": "threshold must be a threshold such as",
    "relbo.VRS(2, True)": "threshold must be a threshold such as",
    "relbo.VRS(2, rate='fast')": "Rate: rate must be a number in (0, 1), or a schedule, got 'fast'.",
    "relbo.VRSAll(2, acceptance='soft')": "VRSAll: acceptance must be an acceptance such as",
    "relbo.VRS(2, acceptance='soft')": "got 'soft'.",
    "relbo.Quantile('0.5')": "Quantile: gamma must be a number in (0, 1), or a schedule, got '0.5'.",
    "relbo.Quantile(0.5, 2.5)": "Quantile: num_draws must be an integer >= 1, got 2.5.",
    "relbo.Fixed(None)": "Fixed: T must be a real number or +inf, or a schedule, got None.",
    "relbo.Soft('1')": "Soft: sharpness must be a finite number > 0, got '1'.",
    "relbo.sbn(jax.random.key(0), [1], jnp.asarray([[0.5]]))": "sbn: data_mean must be a vector",
    "relbo.Rate(0.5).init(2.5)": "num_data must be an integer >= 1, got 2.5.",
    "relbo.sbn(jax.random.key(0), [1], jnp.asarray([2.0]))": "sbn: data_mean must be means of 0s and 1s",
    "relbo.sbn(jax.random.key(0), [1], jnp.asarray([jnp.nan]))": "sbn: data_mean must be means of 0s and 1s",
    "relbo.sbn(0, [1], jnp.asarray([0.5]))": "sbn: key must be a random key such as jax.random.key(0), got 0.",
    "fit(data={})": "fit: data must be arrays with the same number of datapoints, at least one, first, got [].",
    "fit(data=None)": "fit: data must be arrays with the same number of datapoints",
    "fit(data={'a': x, 'b': x[:3]})": "fit: data must be arrays with the same number of datapoints",
    "fit(data=[1, 2])": "fit: data must be an array of numbers, or a tree of such arrays, got 1.",
    "fit(data=jax.random.split(jax.random.key(0), 8))": "fit: data must be an array of numbers",
    "fit(valid={'a': x, 'b': x[:3]})": "fit: valid must be arrays with the same number of datapoints",
    "fit(estimator='vrs')": "fit: estimator must be an estimator such as relbo.VRS(5), got 'vrs'.",
    "fit(estimator=relbo.RLOO)": "fit: estimator must be an estimator such as relbo.VRS(5), got <class",
    "fit(pair=(pair.model, pair.proposal))": "fit: pair must be a relbo.Pair(model, proposal), such as relbo.sbn makes",
    "fit(optimizer='adam')": "accepted",
    "fit(optimizer='adm')": "an Optax optimiser such as adam, got 'adm'; did you mean 'adam'?",
    "fit(optimizer=optax.adam)": "fit: optimizer must be an Optax optimiser such as optax.adam(1e-3), or its name",
    "fit(optimizer=3)": "fit: optimizer must be an Optax optimiser such as optax.adam(1e-3), or its name, got 3.",
    "fit(out=3)": "fit: out must be None or a directory, got 3.",
    "fit(num_epochs=10**9)": "fit: num_epochs must be less than 2^31 steps at 4 steps per epoch, got 1000000000.",
    "relbo.evaluate(pair, x, 'elbo', key=0)": "evaluate: key must be a random key such as jax.random.key(0), got 0.",
    "relbo.evaluate(pair, x, 3, key=jax.random.key(0))": "evaluate: bounds must be a bound or a list of bounds, got 3.",
    "relbo.evaluate((1, 2), x, 'elbo', key=jax.random.key(0))": "evaluate: pair must be a relbo.Pair",
    "relbo.evaluate(pair, x, 'elbow', key=jax.random.key(0))": "a bound must be elbo, is:K or rs:K with an integer",
    "relbo.posterior(0, pair, x, rate=0.5)": "posterior: key must be a random key",
    "relbo.posterior(jax.random.key(0), None, x, rate=0.5)": "posterior: pair must be a relbo.Pair",
    "relbo.load(3)": "load: path must be a run directory, got 3.",
    "relbo.data.load(3)": "data must be one of digits, binarized-mnist, mnist, omniglot28 or the path of an .npz file",
    "relbo.data.load('digits', '.')": "accepted",
    "relbo.data.load('digits', 3)": "data_dir must be a directory, got 3.",
    "relbo.VRS(np.int64(2), relbo.Quantile(np.float32(0.5), np.int32(3)), relbo.Soft(np.float64(0.5)))": "accepted",
}


def test_wrong_types_without_the_checks_of_the_test_suite():
    # in the tests an annotation refuses them first, so ask a plain interpreter, as a user has it
    script = f"""
import jax, jax.numpy as jnp, numpy as np, optax, relbo
x = np.zeros((8, 2), np.float32)
pair = relbo.sbn(jax.random.key(0), [1], jnp.asarray([0.5, 0.5]))
def fit(**said):
    good = dict(pair=pair, estimator=relbo.RLOO(2), data=x, num_epochs=0, batch_size=2)
    relbo.fit(**dict(good, **said))
for expression in {list(WRONG_TYPES)!r}:
    try:
        eval(expression)
        print("accepted")
    except ValueError as error:
        print(error)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for (expression, expected), got in zip(WRONG_TYPES.items(), result.stdout.splitlines(), strict=True):
        assert expected in got, expression
