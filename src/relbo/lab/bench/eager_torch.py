"""The same step in eager PyTorch: what one would write without a compiler.

Needs `pip install torch==2.13.0`.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch


def make_step(
    x: np.ndarray,
    thresholds: np.ndarray,
    down: Sequence[tuple[np.ndarray, np.ndarray]],
    prior: np.ndarray,
    up: Sequence[tuple[np.ndarray, np.ndarray]],
    data_mean: np.ndarray,
    num_samples: int,
) -> Callable[[int], None]:
    """Steps of VRS with Adam on one batch.

    Args:
        x: (b, d) images.
        thresholds: (b,) T of each image.
        down: (weight, bias) of the model's layers, the one that makes x first.
        prior: logits of the top layer.
        up: (weight, bias) of the proposal's layers, the one that sees x first.
        data_mean: centre of x.
        num_samples: S.
    """
    images, t, centre = torch.tensor(x), torch.tensor(thresholds), torch.tensor(data_mean)

    def parameters(layers: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.tensor(w).requires_grad_(), torch.tensor(b).requires_grad_()) for w, b in layers]

    p_layers, q_layers = parameters(down), parameters(up)
    top = torch.tensor(prior).requires_grad_()
    leaves = [leaf for pair in (*p_layers, *q_layers) for leaf in pair] + [top]
    adam = torch.optim.Adam(leaves, lr=1e-3)

    def log_bernoulli(value: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return (value * logits - torch.nn.functional.softplus(logits)).sum(-1)

    def propose(first: torch.Tensor) -> list[torch.Tensor]:
        h = [(torch.rand_like(first) < torch.sigmoid(first)).to(first.dtype)]
        for weight, bias in q_layers[1:]:
            logits = (2 * h[-1] - 1) @ weight.T + bias
            h.append((torch.rand_like(logits) < torch.sigmoid(logits)).to(first.dtype))
        return h

    def log_q(h: list[torch.Tensor], first: torch.Tensor) -> torch.Tensor:
        total = log_bernoulli(h[0], first)
        for below, value, (weight, bias) in zip(h[:-1], h[1:], q_layers[1:], strict=True):
            total = total + log_bernoulli(value, (2 * below - 1) @ weight.T + bias)
        return total

    def log_p(rows: torch.Tensor, h: list[torch.Tensor]) -> torch.Tensor:
        total = log_bernoulli(h[-1], top)
        for value, above, (weight, bias) in zip([rows, *h[:-1]], h, p_layers, strict=True):
            total = total + log_bernoulli(value, (2 * above - 1) @ weight.T + bias)
        return total

    def sample() -> list[torch.Tensor]:
        # only the places that are still empty are drawn again
        with torch.no_grad():
            first = ((images - centre) @ q_layers[0][0].T + q_layers[0][1]).repeat_interleave(num_samples, 0)
            rows, limits = images.repeat_interleave(num_samples, 0), t.repeat_interleave(num_samples, 0)
            kept = [torch.zeros(len(rows), len(bias)) for _, bias in q_layers]
            empty = torch.arange(len(rows))
            while len(empty):
                h = propose(first[empty])
                u = log_p(rows[empty], h) - log_q(h, first[empty]) + limits[empty]
                accepted = torch.rand(len(empty)) < torch.sigmoid(u)
                for layer, new in zip(kept, h, strict=True):
                    layer[empty[accepted]] = new[accepted]
                empty = empty[~accepted]
            return kept

    def step() -> None:
        h = sample()
        first = ((images - centre) @ q_layers[0][0].T + q_layers[0][1]).repeat_interleave(num_samples, 0)
        of_p = log_p(images.repeat_interleave(num_samples, 0), h).reshape(-1, num_samples)
        of_q = log_q(h, first).reshape(-1, num_samples)
        with torch.no_grad():
            u = of_p - of_q + t[:, None]
            signal = of_p - of_q - torch.nn.functional.logsigmoid(u)
            centred = (signal - signal.mean(-1, keepdim=True)) / (num_samples - 1)
            slope = torch.sigmoid(-u)
        bound = ((1 / num_samples + slope * centred) * of_p + (1 - slope) * centred * of_q).sum(-1).mean()
        adam.zero_grad()
        (-bound).backward()
        adam.step()

    def run(num_steps: int) -> None:
        for _ in range(num_steps):
            step()

    return run
