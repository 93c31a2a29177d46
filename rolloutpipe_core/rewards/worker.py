"""A verifier's worker: `python -m rolloutpipe_core.rewards.worker VERIFIER MEMORY_MB`.

    pool                                   worker
     |                                       |  loads the verifier
     |  <-- ready | refused (reason)         |
     |  {prompt, responses} -->              |
     |  <-- started                          |  ┐ for each response, in order: the pool's clock for it starts at
     |  <-- scored (value, reason, judged)   |  ┘ `started`; `out_of_memory` instead of `scored` ends the worker

It ends when its standard input does. Deadlines are the pool's: it kills the worker.
"""

from __future__ import annotations

import os
import resource
import sys
import traceback
from importlib import import_module
from numbers import Real

from rolloutpipe_core.channel import Channel
from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.rewards.score import Score, Verifier

BUILT_IN = {
    "pointer_walk": "rolloutpipe_core.rewards.pointer_walk:verify",
    "exact": "rolloutpipe_core.rewards.exact:verify",
    "math": "rolloutpipe_core.rewards.math_answer:verify",
}
REASON_LENGTH = 300


def main() -> None:
    name, memory_mb = sys.argv[1], int(sys.argv[2])
    channel = _private_channel()
    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        verifier = load_verifier(name)
    except Exception as error:
        channel.send({"event": "refused", "reason": _described(error)})
        return
    channel.send({"event": "ready"})
    try:
        while True:
            _serve(channel, verifier)
    except (EOFError, BrokenPipeError):
        return


def load_verifier(name: str) -> Verifier:
    """One of `BUILT_IN`, or `module:function`. Raises what the import raises, AttributeError or TypeError."""
    module, _, function = BUILT_IN.get(name, name).partition(":")
    verifier = getattr(import_module(module), function)
    if not callable(verifier):
        raise TypeError(f"{function} is not a function")
    loaded: Verifier = verifier
    return loaded


def judge(verifier: Verifier, prompt: Prompt, response: str) -> Score:
    """The verifier's score; 0 with a reason when it raises or returns what is no score. MemoryError passes."""
    try:
        score = verifier(prompt, response)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        return Score(0.0, f"the verifier raised {_described(error)}", judged=False)
    if not isinstance(score, Score):
        return Score(0.0, f"the verifier returned {type(score).__name__}, not a Score", judged=False)
    # NaN compares false.
    if not isinstance(score.value, Real) or not 0 <= score.value <= 1:
        reason = f"the verifier returned the value {score.value!r:.60}, not one in [0, 1]"
        return Score(0.0, reason, judged=False)
    return Score(float(score.value), None if score.reason is None else str(score.reason)[:REASON_LENGTH])


def _serve(channel: Channel, verifier: Verifier) -> None:
    """One batch."""
    batch = channel.receive()
    messages = batch["prompt"].pop("messages")
    prompt = Prompt(**batch["prompt"], messages=None if messages is None else tuple(messages))
    for response in batch["responses"]:
        channel.send({"event": "started"})
        try:
            score = judge(verifier, prompt, response)
        except MemoryError:
            channel.send({"event": "out_of_memory"})
            sys.exit(1)
        channel.send({"event": "scored", "value": score.value, "reason": score.reason, "judged": score.judged})


def _private_channel() -> Channel:
    """Move the pipes away from where a verifier prints and reads: its output joins stderr, its input is empty."""
    channel = Channel(os.dup(0), os.dup(1))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return channel


def _described(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()[:REASON_LENGTH]


if __name__ == "__main__":
    main()
