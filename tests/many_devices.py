"""What processes with several devices do in tests; `python -m tests.many_devices CASE SETTINGS` prints JSON."""

import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np

ROWS, UNITS = 52, 10


def rows():
    return (np.random.default_rng(0).random((ROWS, UNITS)) < 0.4).astype(np.float32)


def small_pair():
    import relbo

    return relbo.sbn(jax.random.key(1), (4,), jax.numpy.full(UNITS, 0.4))


def host_leaves(tree):
    from relbo.devices import on_host

    words = [
        jax.random.key_data(v) if jax.numpy.issubdtype(v.dtype, jax.dtypes.prng_key) else v
        for v in jax.tree.leaves(tree)
        if isinstance(v, jax.Array)
    ]
    return [on_host(v) for v in words]


def digest(tree):
    return hashlib.sha256(b"".join(np.ascontiguousarray(v).tobytes() for v in host_leaves(tree))).hexdigest()


def summary(result):
    """What a run gives, as plain numbers."""
    thresholds = getattr(result.state.estimator_state, "thresholds", ())
    return {
        "digest": digest(result.state),
        "best": digest(result.best),
        "records": [
            {k: v for k, v in record.items() if k not in ("seconds", "cpu_seconds")} for record in result.metrics
        ],
        "parameters": [v.astype(float).ravel().tolist() for v in host_leaves(result.state.pair)],
        "thresholds": [np.nan_to_num(v.astype(float)).ravel().tolist() for v in host_leaves(thresholds)],
        "step": int(result.state.step),
    }


def fit(options):
    """Trains on all devices."""
    import relbo

    estimators = {
        "rloo": relbo.RLOO(2),
        "rate": relbo.VRS(2, num_proposals=3, threshold=relbo.Rate(0.4, num_draws=5)),
        "quantile": relbo.VRS(2, num_proposals=3, threshold=relbo.Quantile(0.6, num_draws=5, every=20)),
        "nvil": relbo.NVIL(2),
        "rebar": relbo.REBAR(),
    }
    settings = {
        "num_epochs": 8,
        "batch_size": 4,
        "shards": 4,
        "log_every": 10,
        "valid_bound": "is:3",
        "progress": False,
    }
    given = options.get("fit", {})
    mesh = options.get("mesh", len(jax.devices()))
    x = rows()
    return relbo.fit(small_pair(), estimators[options["estimator"]], x, valid=x[:9], mesh=mesh, **{**settings, **given})


def case_fit(options):
    return summary(fit(options))


def case_every(options):
    """One fit on each number of devices."""
    return {str(mesh): summary(fit({**options, "mesh": mesh})) for mesh in options["meshes"]}


def case_refused(options):
    """A run in which one process has another seed."""
    seed = options["process_id"]
    try:
        fit({**options, "fit": {**options.get("fit", {}), "seed": seed}})
    except ValueError as error:
        return {"error": str(error)}
    return {"error": None}


def case_look(options):
    """Evaluation and draws, on one device and on all."""
    import relbo

    found = {}
    for mesh in (None, len(jax.devices())):
        values = relbo.evaluate(small_pair(), rows(), ["is:3", "rs:2"], key=jax.random.key(2), rate=0.4, mesh=mesh)
        draws = relbo.posterior(
            jax.random.key(3), small_pair(), rows(), rate=0.4, num_samples=4_000, num_draws=20, mesh=mesh
        )
        found[str(mesh)] = {
            "values": {name: value.values.tolist() for name, value in values.items()},
            "extra": values["rs:2"].extra,
            "draws": hashlib.sha256(np.asarray(draws.z[0]).tobytes()).hexdigest(),
            "proposals": draws.num_proposals.tolist(),
        }
    return found


def main():
    case, options = sys.argv[1], json.loads(sys.argv[2])
    jax.config.update("jax_num_cpu_devices", options["num_devices"])
    if options["num_processes"] > 1:
        address = f"localhost:{options['port']}"
        jax.distributed.initialize(
            address, options["num_processes"], options["process_id"], shutdown_timeout_seconds=20
        )
    from relbo.lab.compiled import keep_compiled

    keep_compiled(Path(options["cache"]), min_seconds=0.0)
    print("\n" + json.dumps(globals()[f"case_{case}"](options)), flush=True)


if __name__ == "__main__":
    main()
