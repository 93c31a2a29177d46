"""A verifier that a test holds back or breaks by files in the folder $ROLLOUTPIPE_TEST_GATE."""

import os
import time
from pathlib import Path

from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.rewards import pointer_walk
from rolloutpipe_core.rewards.score import Score

GATE = Path(os.environ["ROLLOUTPIPE_TEST_GATE"])

if (GATE / "broken").exists():
    os._exit(3)


def verify(prompt: Prompt, response: str) -> Score:
    """The pointer walk's score; not while there is a file `closed`, and dead while there is a file `broken`."""
    if (GATE / "broken").exists():
        os._exit(3)
    while (GATE / "closed").exists():
        time.sleep(0.01)
    return pointer_walk.verify(prompt, response)
