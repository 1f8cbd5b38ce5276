"""The same step, budget and all, in PyTorch: what one would write without a compiler, and the same through its own.

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
    num_proposals: int,
    *,
    compiled: bool = False,
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
        num_proposals: N.
        compiled: whether `torch.compile` makes one program of a round, forwards and backwards, and one of the weights.
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

    def encode(rows: torch.Tensor) -> torch.Tensor:
        return (rows - centre) @ q_layers[0][0].T + q_layers[0][1]

    def log_p(rows: torch.Tensor, h: list[torch.Tensor]) -> torch.Tensor:
        total = log_bernoulli(h[-1], top)
        for value, above, (weight, bias) in zip([rows, *h[:-1]], h, p_layers, strict=True):
            total = total + log_bernoulli(value, (2 * above - 1) @ weight.T + bias)
        return total

    def propose(rows: torch.Tensor, k: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        # k draws for each row with log p and log q; the logits of q serve the draw and its density
        logits = encode(rows)[:, None].expand(-1, k, -1)
        h, of_q = [], torch.zeros(len(rows), k)
        for i in range(len(q_layers)):
            h.append((torch.rand(logits.shape) < torch.sigmoid(logits.detach())).to(logits.dtype))
            of_q = of_q + log_bernoulli(h[-1], logits)
            if i + 1 < len(q_layers):
                logits = (2 * h[-1] - 1) @ q_layers[i + 1][0].T + q_layers[i + 1][1]
        return h, log_p(rows[:, None], h), of_q

    def score(rows: torch.Tensor, h: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        of_q = log_bernoulli(h[0], encode(rows))
        for below, value, (weight, bias) in zip(h[:-1], h[1:], q_layers[1:], strict=True):
            of_q = of_q + log_bernoulli(value, (2 * below - 1) @ weight.T + bias)
        return log_p(rows, h), of_q

    def loss(of_p: torch.Tensor, of_q: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        # (b, N + S) places, of which `used` count
        u = (of_p - of_q).detach() + t[:, None]
        count = used.sum(-1, keepdim=True)
        signal = torch.where(used, u - t[:, None] - torch.nn.functional.logsigmoid(u), 0)
        centred = torch.where(used, signal - signal.sum(-1, keepdim=True) / count, 0) / (count - 1)
        slope = torch.sigmoid(-u)
        of_model = torch.where(used, 1 / count, 0) + slope * centred
        return -(of_model * of_p + (1 - slope) * centred * of_q).sum(-1).mean()

    first_round = torch.compile(propose) if compiled else propose
    weighed = torch.compile(loss) if compiled else loss

    def late(counts: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        # rows and draws of those that miss acceptances, S at a time until none does
        rows, found = torch.zeros(0, dtype=torch.long), [torch.zeros(0, len(bias)) for _, bias in q_layers]
        with torch.no_grad():
            missing = (num_samples - counts).clamp(min=0)
            while missing.any():
                who = missing.nonzero()[:, 0]
                h, of_p, of_q = propose(images[who], num_samples)
                accepted = torch.rand(of_p.shape) < torch.sigmoid(of_p - of_q + t[who, None])
                accepted &= accepted.cumsum(-1) <= missing[who, None]
                missing[who] -= accepted.sum(-1)
                rows = torch.cat([rows, who.repeat_interleave(accepted.sum(-1))])
                found = [torch.cat([old, new[accepted]]) for old, new in zip(found, h, strict=True)]
        return rows, found

    def step() -> None:
        _, of_p, of_q = first_round(images, num_proposals)
        with torch.no_grad():
            used = torch.rand(of_p.shape) < torch.sigmoid(of_p - of_q + t[:, None])
            counts = used.sum(-1)
        if (counts < num_samples).any():
            rows, h = late(counts)
            place = ((rows[:, None] == rows).tril(-1)).sum(-1)  # how many of its row came before
            empty = torch.zeros(len(images), num_samples)
            late_p, late_q = (empty.index_put((rows, place), v) for v in score(images[rows], h))
            used = torch.cat([used, empty.index_put((rows, place), torch.ones(())).bool()], -1)
            of_p, of_q = torch.cat([of_p, late_p], -1), torch.cat([of_q, late_q], -1)
            bound = loss(of_p, of_q, used)
        else:
            bound = weighed(of_p, of_q, used)
        adam.zero_grad()
        bound.backward()
        adam.step()

    def run(num_steps: int) -> None:
        for _ in range(num_steps):
            step()

    return run
