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


def gumbel(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn uniforms in [0, 1 - 2**-53] into Gumbel noise, in place: -log(-log u), between -3.63 and 36.74."""
    # Only an exact 0 must be moved to keep both logarithms finite.
    np.maximum(uniform, 2.0**-54, out=uniform)
    for _ in range(2):
        np.log(uniform, out=uniform)
        np.negative(uniform, out=uniform)
    return uniform


class GumbelStream:
    """Gumbel noise of one sample, position by position, from Philox 4x64 (Salmon et al., SC 2011).

    Each position owns ceil(V / 4) counters of four 64-bit words, so that `seek` is one `advance` and
    positions never share a word. A uniform takes 53 bits: 24 would cap the noise at 16.6 and with it the
    tail of a large vocabulary.
    """

    def __init__(self, seed: int, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._counters = -(-vocabulary // 4)
        self._seed = seed
        self.seek(0)

    def seek(self, position: int) -> None:
        """Make `take` go on from this position."""
        bits = np.random.Philox(key=self._seed)
        if position:
            bits.advance(position * self._counters)
        self._generator = np.random.Generator(bits)

    def take(self, positions: int) -> NDArray[np.float64]:
        """Noise of the next positions, float64 [positions, V]; how many are taken at once changes no bit."""
        return gumbel(self._generator.random((positions, self._counters * 4)))[:, : self._vocabulary]
