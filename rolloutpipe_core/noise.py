"""Keyed Gumbel noise: a sample's randomness depends on (seed, round, group, sample, position) alone.

A token is argmax(log-softmax(logits / T) + noise), so that a sample does not depend on what else is in
the batch, on the schedule or on the attempt. Noise at a position can be drawn without drawing what comes
before it, which later makes a drafted response checkable in one forward pass.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def sample_seed(run_seed: int, round: int, group: int, sample: int) -> int:
    """The 128-bit Philox key of one sample. The attempt is left out on purpose: a retry repeats the sample."""
    text = f"rolloutpipe/sample/{run_seed}/{round}/{group}/{sample}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


class GumbelStream:
    """Gumbel noise of one sample, position by position.

    Each position owns ceil(V / 4) Philox counters (four 64-bit words each), so that `seek` is one
    `advance` and positions never share a word.
    """

    def __init__(self, seed: int, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._blocks = -(-vocabulary // 4)
        self._seed = seed
        self.seek(0)

    def seek(self, position: int) -> None:
        """Make `next()` return the noise of this position."""
        bits = np.random.Philox(key=self._seed)
        bits.advance(position * self._blocks)
        self._generator = np.random.Generator(bits)

    def next(self) -> NDArray[np.float64]:
        """Noise of the next position: float64 [V]. Uniforms carry 53 bits, which caps the noise at 36.7."""
        uniform = self._generator.random(self._blocks * 4)[: self._vocabulary]
        # random() lies in [0, 1 - 2**-53]: only an exact 0 must be moved to keep both logarithms finite.
        np.maximum(uniform, 2.0**-54, out=uniform)
        return -np.log(-np.log(uniform))
