"""NumPyro's own examples with relbo's `SVI` and `ResampledELBO` in place of its own loss.

    python benchmarks/numpyro_examples.py --numpyro PATH [--images FILE] [--only NAME] [--rate 0.5] [--share 1.0]
        [--seed 0]

PATH is a checkout of github.com/pyro-ppl/numpyro; nothing of it is copied here. Models, guides and data are those of
the examples; an example that has no guide, because it runs NUTS, gets `AutoNormal`. FILE is an .npz file whose first
array holds binary images for vae.py; without it they are bars. For each example the mean loss of the last fifth of the
steps, with NumPyro's loss of five draws beside it, the share of rows that ran out of proposals, the step at which
rejection began, and the time of a step. --rate 0 is `ResampledELBO(5)` as it is, with quantiles. An example that needs
a package that is missing is passed over.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.handlers import seed
from numpyro.infer import Trace_ELBO, TraceEnum_ELBO
from numpyro.infer.autoguide import AutoBNAFNormal, AutoDAIS, AutoDiagonalNormal, AutoNormal
from starving import Program, strokes, train

from relbo.numpyro import ResampledELBO


def load(name: str) -> Any:
    """An example as a module."""
    return importlib.import_module(name)


def mixture() -> Program:
    """One discrete latent of the model is summed out."""
    example = load("toy_mixture_model_discrete_enumeration")
    prior, _, data = seed(example.generate_data, jax.random.key(0))(10_000)
    model, guide = (partial(part, prior, data, 10_000) for part in (example.model, example.guide))
    return Program(model, guide, (), 0.01, 4_000)


def autoencoder(images: np.ndarray) -> Program:
    """Batches are arguments, and the plate has their size."""
    example = load("vae")
    model, guide = (partial(part, hidden_dim=400, z_dim=50) for part in (example.model, example.guide))
    return Program(model, guide, (jnp.asarray(images, jnp.float32),), 1e-3, 1_500, batches=128)


def zero_inflated() -> Program:
    """A mixture within the likelihood."""
    model = load("zero_inflated_poisson").model
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 4))
    y = random.poisson(np.exp(x @ random.normal(size=4) * 0.5)) * (random.random(200) < 0.6)
    return Program(model, AutoDiagonalNormal(model), (jnp.asarray(x), jnp.asarray(y)), 0.001, 5_000)


def annealed(*, dais: bool) -> Program:
    """A Gaussian process with a link of the third power."""
    example = load("dais_demo")
    x, y = example.get_data()
    guide = AutoDAIS(example.model, K=8, eta_init=0.02, eta_max=0.5) if dais else AutoDiagonalNormal(example.model)
    return Program(example.model, guide, (jnp.asarray(x), jnp.asarray(y)), 5e-4 if dais else 3e-3, 2_000)


def moons() -> Program:
    """A flow as the guide."""
    model = load("neutra").dual_moon_model
    return Program(model, AutoBNAFNormal(model, hidden_factors=[8, 8]), (), 0.003, 1_500)


def with_normal_guide(name: str, function: str, arguments: Callable[[Any], tuple], lr: float = 0.01) -> Program:
    """An example that runs NUTS."""
    example = load(name)
    model = getattr(example, function)
    return Program(model, AutoNormal(model), arguments(example), lr, 4_000)


def series(_: Any) -> tuple:
    """An autoregressive series of 200 steps."""
    random, y = np.random.default_rng(0), [0.0, 0.0]
    for _step in range(200):
        y.append(0.5 * y[-1] + 0.3 * y[-2] + random.normal())
    return (jnp.asarray(y),)


EXAMPLES: dict[str, Callable[[], Program]] = {
    "toy_mixture": mixture,
    "zero_inflated": zero_inflated,
    "dais_demo": partial(annealed, dais=False),
    "dais_demo, DAIS": partial(annealed, dais=True),
    "neutra": moons,
    "bnn": lambda: with_normal_guide("bnn", "model", lambda e: (*e.get_data(50)[:2], 5)),
    "horseshoe": lambda: with_normal_guide("horseshoe_regression", "model_normal_likelihood", lambda e: e.get_data(50)),
    "ar2": lambda: with_normal_guide("ar2", "ar2_scan", series),
    "gp": lambda: with_normal_guide("gp", "model", lambda e: e.get_data(25)[:2]),
    "proportion_test": lambda: with_normal_guide(
        "proportion_test", "model", lambda e: e.make_dataset(jax.random.key(3))
    ),
    "funnel": lambda: with_normal_guide("funnel", "model", lambda _: ()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numpyro", type=Path, required=True, help="a checkout of numpyro")
    parser.add_argument("--images", type=Path, help="an .npz file of binary images")
    parser.add_argument("--only", action="append", help="one of the examples; all by default")
    parser.add_argument("--rate", type=float, action="append", help="acceptance rates; by default 0 and 0.5")
    parser.add_argument("--share", type=float, default=1.0, help="share of the steps that is run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.path.insert(0, str(options.numpyro / "examples"))

    def images() -> np.ndarray:
        if options.images is None:
            return strokes()
        with np.load(options.images) as file:
            return file[file.files[0]].reshape(-1, 784)

    examples = {**EXAMPLES, "vae": lambda: autoencoder(images())}
    print(f"{'example':16} {'loss':18} {'mean loss':>11} {'ran out':>8} {'from':>6} {'ms/step':>8}")
    for name in options.only or list(examples):
        try:
            program = examples[name]()
        except ModuleNotFoundError as error:
            print(f"{name:16} passed over: {error}.")
            continue
        num_steps = max(int(program.num_steps * options.share), 10)
        theirs = TraceEnum_ELBO if name == "toy_mixture" else Trace_ELBO
        losses: dict[str, Any] = {"NumPyro's (5)": theirs(5)}
        for rate in options.rate or (0.0, 0.5):
            losses["default" if rate == 0 else f"rate {rate}"] = ResampledELBO(5, rate=rate or None)
        for label, loss in losses.items():
            found = train(program, loss, num_steps, options.seed)
            print(
                f"{name:16} {label:18} {found.loss:11.3f} {found.exhausted:8.2%} {found.begins:>6} "
                f"{found.milliseconds:8.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
