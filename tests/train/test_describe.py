"""Descriptions: every estimator comes back from JSON as it was, and nothing else is ever built."""

import json
import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import relbo
from relbo.estimators import REGISTRY
from relbo.train.describe import Indescribable, describe, described, rebuild


def there_and_back(value):
    return rebuild(json.loads(json.dumps(describe(value), allow_nan=False)))


@pytest.mark.parametrize("name", REGISTRY)
def test_every_estimator_comes_back(name):
    estimator = REGISTRY[name]()
    found = there_and_back(estimator)
    assert type(found) is type(estimator) and bool(eqx.tree_equal(found, estimator))
    assert described(found) == described(estimator)


def test_settings_are_kept():
    estimator = relbo.VRS(7, relbo.Fixed(math.inf), relbo.Hard(), throw=False)
    assert bool(eqx.tree_equal(there_and_back(estimator), estimator))


def test_the_text_shows_defaults_and_infinities():
    estimator = relbo.VRS(7, relbo.Fixed(math.inf), throw=False)
    _, text = described(estimator)
    assert text.startswith("VRS(num_samples=7, threshold=Fixed(") and "'inf'" in text and "throw=False" in text
    description, text = described((relbo.RLOO(), optax.constant_schedule(1.0)))
    assert description is None and text.startswith("(RLOO(), <")


@pytest.mark.parametrize("value", [3, 2.5, -math.inf, "word", None, True, (1, (2.0, None))], ids=str)
def test_plain_values(value):
    found = there_and_back(value)
    assert found == value and type(found) is type(value)


def test_arrays():
    for value in (jnp.asarray(2.5, jnp.float32), jnp.asarray([[1, 2], [3, 4]], jnp.int32), jnp.array([math.inf, 1.0])):
        assert bool(eqx.tree_equal(there_and_back(value), value))
    assert math.isnan(there_and_back(np.float32(math.nan)))


class RLOO(eqx.Module):
    """A class of the user's, even of a familiar name."""

    num_samples: int = 2


@pytest.mark.parametrize("value", [optax.constant_schedule(1.0), RLOO(), [1], object()], ids=lambda v: type(v).__name__)
def test_what_has_no_description(value):
    with pytest.raises(Indescribable, match="only numbers, strings, arrays and objects of relbo's"):
        describe(value)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"class": "os.system", "fields": {}}, "must name a public class of relbo, got 'os.system'"),
        ({"class": "fit", "fields": {}}, "must name a public class of relbo, got 'fit'"),
        ({"clas": "VRS"}, "must name a public class of relbo, got None"),
        ({"class": "RLOO", "fields": {"speed": 1}}, "relbo.RLOO does not take the fields of its description"),
    ],
)
def test_what_is_not_rebuilt(description, message):
    with pytest.raises(ValueError, match=message):
        rebuild(description)
