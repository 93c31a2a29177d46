"""Choosing a token: temperature, top-k, top-p and keyed Gumbel noise."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.noise import GumbelStream

# Values of noise that a slot draws ahead: one call of the generator then serves several steps of a small
# vocabulary, and short responses do not pay for positions that they never reach.
NOISE_BLOCK = 512


def truncation(logprobs: Tensor, top_k: int, top_p: float) -> Tensor:
    """Which ids may be chosen: bool [n, V] for log-probabilities [n, V] under one setting.

    First the `top_k` likeliest (0 = all), then of those, renormalised, the smallest set of the likeliest
    whose probability reaches `top_p`: the order in which the Hugging Face logits processors apply them.
    """
    vocabulary = logprobs.shape[-1]
    kept = min(top_k or vocabulary, vocabulary)
    values, ids = logprobs.topk(kept, dim=-1)
    allowed = torch.ones_like(ids, dtype=torch.bool)
    if top_p < 1.0:
        probabilities = values.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        before[:, 0] = 0.0  # the likeliest id stays, whatever rounding left here
        allowed = before < top_p
    return torch.zeros_like(logprobs, dtype=torch.bool).scatter_(-1, ids, allowed)


class SamplingRows:
    """Sampling settings of every slot, kept on the host; row i belongs to slot i."""

    def __init__(self, slots: int) -> None:
        self._temperature = np.ones(slots, dtype=np.float32)
        self._top_k = np.zeros(slots, dtype=np.int64)
        self._top_p = np.ones(slots, dtype=np.float64)

    def set(self, slot: int, sampling: SamplingConfig) -> None:
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p

    def move(self, source: int, target: int) -> None:
        for values in (self._temperature, self._top_k, self._top_p):
            values[target] = values[source]

    def logprobs(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """log-softmax(logits / T), float32 [n, V], each row with its slot's T."""
        temperature = self._temperature[slots]
        if (temperature != 1.0).any():
            logits = logits / torch.from_numpy(temperature).to(logits.device)[:, None]
        return logits.log_softmax(dim=-1)

    def forbidden(self, logprobs: Tensor, slots: NDArray[np.int64]) -> Tensor | None:
        """Ids cut off by top-k and top-p: bool [n, V]; None when no row cuts any."""
        top_k, top_p = self._top_k[slots], self._top_p[slots]
        if not (top_k.any() or (top_p < 1.0).any()):
            return None
        forbidden = torch.zeros_like(logprobs, dtype=torch.bool)
        settings = {(int(k), float(p)) for k, p in zip(top_k, top_p, strict=True) if k or p < 1.0}
        # One setting at a time, so that a row's set does not depend on its neighbours' settings.
        for k, p in sorted(settings):
            rows = torch.from_numpy(np.flatnonzero((top_k == k) & (top_p == p))).to(logprobs.device)
            forbidden[rows] = ~truncation(logprobs[rows], k, p)
        return forbidden


class SlotNoise:
    """The Gumbel streams of all slots, drawn some positions ahead; float32, as the log-probabilities are."""

    def __init__(self, slots: int, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._ahead = max(1, NOISE_BLOCK // vocabulary)
        self._streams: dict[int, GumbelStream] = {}
        self._drawn = np.zeros((slots, self._ahead, vocabulary), dtype=np.float32)
        self._used = np.zeros(slots, dtype=np.int64)

    def start(self, slot: int, seed: int) -> None:
        """Slot `slot` now belongs to the sample of this seed, at position 0."""
        self._streams[slot] = GumbelStream(seed, self._vocabulary)
        self._used[slot] = self._ahead

    def move(self, source: int, target: int) -> None:
        self._streams[target] = self._streams[source]
        self._drawn[target] = self._drawn[source]
        self._used[target] = self._used[source]

    def take(self, slots: NDArray[np.int64]) -> Tensor:
        """The next position's noise of these slots, float32 [n, V] on the CPU."""
        for slot in slots[self._used[slots] == self._ahead].tolist():
            self._drawn[slot] = self._streams[slot].take(self._ahead)
            self._used[slot] = 0
        noise = self._drawn[slots, self._used[slots]]
        self._used[slots] += 1
        return torch.from_numpy(noise)


def choose(logprobs: Tensor, noise: Tensor, forbidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sampled ids, int64 [n], and their log-probabilities before truncation, float32 [n].

    The argmax of logprobs + noise over the allowed ids is a draw from their (renormalised) distribution:
    the Gumbel-max trick.
    """
    score = logprobs + noise.to(logprobs.device)
    if forbidden is not None:
        score.masked_fill_(forbidden, -torch.inf)
    ids = score.argmax(dim=-1)
    return ids, logprobs.gather(-1, ids[:, None])[:, 0]
