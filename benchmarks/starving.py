"""Do programs on which rejection is hard train with the defaults of `ResampledELBO`, and to better bounds?

Five programs in the manner of NumPyro's examples: a subsampled likelihood of global latents, groups of observations,
a logistic regression, an annealed guide (`AutoDAIS`), and a variational auto-encoder whose batches are arguments. For
each the mean loss of the last fifth of the steps, with `Trace_ELBO` of as many draws beside it, the share of rows that
ran out of proposals, the step at which rejection began, and the time of a step. The auto-encoder is trained on bars
or, with --data, on a dataset of images; then the ELBO and the bound of 100 importance samples of 1,000 test images
stand beside the loss, which judge all losses alike. --rate 0 is `ResampledELBO(K)` as it is, with quantiles.

    python benchmarks/starving.py [--only NAME] [--rate 0.5] [--lr 0.01] [--share 1.0] [--seed 0] [--data NAME]
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.example_libraries import stax
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDAIS, AutoNormal

import relbo
from relbo.numpyro import RLOO, SVI, VIMCO, ResampledELBO
from relbo.numpyro.objective import STATE_SITE
from relbo.thresholds import SettledState


class Program(NamedTuple):
    """A model with its guide and data."""

    model: Callable[..., None]
    guide: Any
    args: tuple
    """Arguments of model and guide; of `batches`, the data that they are taken from."""
    lr: float
    num_steps: int
    num_samples: int = 5
    batches: int | None = None
    """Size of batches that are arguments."""
    held_out: jax.Array | None = None
    """Data to judge on."""


def subsampled() -> Program:
    """One global latent, and a tenth of the data in each step: log w moves as a whole with every minibatch."""
    y = 1 + jax.random.normal(jax.random.key(0), (200,))

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        with numpyro.plate("data", y.shape[0], subsample_size=20):
            numpyro.sample("y", dist.Normal(mu, 1), obs=numpyro.subsample(y, event_dim=0))

    return Program(model, AutoNormal(model), (y,), 0.005, 4_000)


def groups(num_groups: int = 85, size: int = 10) -> Program:
    """Group means around a common mean; the latents of all groups are shared draws to each of them."""
    random = np.random.default_rng(0)
    y = jnp.asarray(random.normal(1.0, 1.0, (num_groups, 1)) + random.normal(0, 1.0, (num_groups, size)))

    def model(y):
        centre = numpyro.sample("centre", dist.Normal(0, 5))
        spread = numpyro.sample("spread", dist.HalfNormal(2))
        noise = numpyro.sample("noise", dist.HalfNormal(2))
        with numpyro.plate("groups", y.shape[0]):
            mean = numpyro.sample("mean", dist.Normal(centre, spread))
            numpyro.sample("y", dist.Normal(mean[:, None], noise).to_event(1), obs=y)

    return Program(model, AutoNormal(model), (y,), 0.05, 3_000)


def regression(num_rows: int = 100, num_features: int = 17) -> Program:
    """Logistic regression with correlated features and a diagonal guide, two accepted draws."""
    random = np.random.default_rng(1)
    x = random.normal(size=(num_rows, num_features)) @ random.normal(size=(num_features, num_features)) * 0.4
    y = random.random(num_rows) < 1 / (1 + np.exp(-x @ random.normal(size=num_features)))

    def model(x, y):
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    return Program(model, AutoNormal(model), (jnp.asarray(x), jnp.asarray(y, float)), 0.005, 10_000, 2)


def annealed() -> Program:
    """The regression with a guide of annealed Hamiltonian steps."""
    plain = regression(50, 3)
    return plain._replace(guide=AutoDAIS(plain.model, K=4), lr=0.01, num_steps=1_000, num_samples=5)


def autoencoder(
    images: np.ndarray, held_out: np.ndarray | None = None, hidden: int = 400, latent: int = 50, batch: int = 128
) -> Program:
    """A variational auto-encoder whose minibatches are arguments: row i is another image in each step."""
    pixels = images.shape[1]
    encode = stax.serial(
        stax.Dense(hidden), stax.Softplus, stax.FanOut(2), stax.parallel(stax.Dense(latent), stax.Dense(latent))
    )
    decode = stax.serial(stax.Dense(hidden), stax.Softplus, stax.Dense(pixels))

    def model(x):
        net = numpyro.module("decoder", decode, (x.shape[0], latent))
        with numpyro.plate("images", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0, 1).expand([latent]).to_event(1))
            numpyro.sample("x", dist.Bernoulli(logits=net(z)).to_event(1), obs=x)

    def guide(x):
        net = numpyro.module("encoder", encode, (x.shape[0], pixels))
        mean, log_scale = net(x)
        with numpyro.plate("images", x.shape[0]):
            numpyro.sample("z", dist.Normal(mean, jnp.exp(log_scale)).to_event(1))

    rest = None if held_out is None else jnp.asarray(held_out, float)
    return Program(model, guide, (jnp.asarray(images, float),), 1e-3, 2_000, batches=batch, held_out=rest)


def strokes(num_images: int = 2_000, side: int = 28) -> np.ndarray:
    """Binary images of three random bars each, for those who have no data at hand."""
    random = np.random.default_rng(2)
    images = np.zeros((num_images, side, side), bool)
    for image in images:
        for _ in range(3):
            start, width = random.integers(0, side - 3), random.integers(1, 4)
            part = image if random.random() < 0.5 else image.T
            part[start : start + width] = True
    return images.reshape(num_images, -1)


class Outcome(NamedTuple):
    """What a run came to."""

    loss: float
    """Mean over the last fifth of the steps."""
    exhausted: float
    """Share of rows that ran out of proposals."""
    begins: str
    """The step at which rejection began."""
    milliseconds: float
    """Of one step, without compilation."""
    judged: tuple[float, ...] = ()
    """Minus the ELBO and minus the IS-100 bound of an image that was held out, in nats."""


def judge(program: Program, params: dict[str, Any], size: int = 100, most: int = 1_000) -> tuple[float, ...]:
    """Minus the mean bounds of the held-out rows."""
    found = []
    for loss in (RLOO(size), VIMCO(size)):
        svi = SVI(program.model, program.guide, numpyro.optim.Adam(1.0), loss)
        rows = program.held_out[:most].reshape(-1, size, program.held_out.shape[1])
        values = jax.lax.map(
            lambda x, loss=loss, svi=svi: loss.loss(jax.random.key(1), params, svi.model, svi.guide, x), rows
        )
        found.append(float(jnp.sum(values)) / (rows.shape[0] * size))
    return tuple(found)


def train(program: Program, loss: Any, num_steps: int, seed: int = 0) -> Outcome:
    """Trains with NumPyro's own loop, written out, so that batches may be arguments."""
    svi = SVI(program.model, program.guide, numpyro.optim.Adam(program.lr), loss)
    key_init, key_data = jax.random.split(jax.random.key(seed))

    def arguments(step: jax.Array) -> tuple:
        if program.batches is None:
            return program.args
        (data,) = program.args
        rows = jax.random.randint(jax.random.fold_in(key_data, step), (program.batches,), 0, data.shape[0])
        return (data[rows],)

    state = svi.init(key_init, *arguments(jnp.zeros((), int)))

    @jax.jit
    def run(state: Any, steps: jax.Array) -> tuple[Any, jax.Array]:
        return jax.lax.scan(lambda s, i: svi.update(s, *arguments(i)), state, steps)

    compiled = run.lower(state, jnp.arange(num_steps)).compile()
    start = time.perf_counter()
    state, losses = jax.block_until_ready(compiled(state, jnp.arange(num_steps)))
    seconds = time.perf_counter() - start
    tally = getattr((state.mutable_state or {}).get(STATE_SITE), "tally", None)
    exhausted = 0.0 if tally is None else float(tally.num_exhausted) / num_steps
    thresholds = getattr((state.mutable_state or {}).get(STATE_SITE), "thresholds", None)
    begins = str(int(thresholds.begun)) if isinstance(thresholds, SettledState) and thresholds.rejects else "never"
    loss = float(jnp.mean(losses[-max(num_steps // 5, 1) :]))
    judged = () if program.held_out is None else judge(program, svi.get_params(state))
    return Outcome(loss, exhausted, begins, 1e3 * seconds / num_steps, judged)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "subsampled": subsampled,
    "groups": groups,
    "regression": regression,
    "annealed": annealed,
    "autoencoder": lambda: autoencoder(strokes()),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PROGRAMS), action="append", help="one of the programs; all by default")
    parser.add_argument("--rate", type=float, action="append", help="acceptance rates; by default 0.5 and 0.1")
    parser.add_argument("--lr", type=float, action="append", help="step sizes; by default each program's own")
    parser.add_argument("--share", type=float, default=1.0, help="share of the steps that is run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="images of the auto-encoder: a name or a file that `relbo.data.load` takes")
    options = parser.parse_args(arguments)

    def build(name: str) -> Program:
        if name != "autoencoder" or options.data is None:
            return PROGRAMS[name]()
        data = relbo.data.load(options.data)
        return autoencoder(np.asarray(data.train), np.asarray(data.test))

    print(f"{'program':14} {'lr':>6} {'loss':18} {'mean loss':>12} {'ran out':>8} {'from':>6} {'ms/step':>8}")
    names = options.only or list(PROGRAMS)
    for name, lr in [(name, lr) for name in names for lr in options.lr or (None,)]:
        program = build(name)
        program = program if lr is None else program._replace(lr=lr)
        num_steps = max(int(program.num_steps * options.share), 10)
        losses: dict[str, Any] = {f"Trace_ELBO({program.num_samples})": Trace_ELBO(program.num_samples)}
        for rate in options.rate or (0.5, 0.1):
            losses["default" if rate == 0 else f"rate {rate}"] = ResampledELBO(program.num_samples, rate=rate or None)
        for label, loss in losses.items():
            found = train(program, loss, num_steps, options.seed)
            print(
                f"{name:14} {program.lr:6} {label:18} {found.loss:12.3f} {found.exhausted:8.2%} {found.begins:>6} "
                f"{found.milliseconds:8.3f}" + "".join(f" {value:9.3f}" for value in found.judged),
                flush=True,
            )


if __name__ == "__main__":
    main()
