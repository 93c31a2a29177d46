"""`python skewed_clock.py SECONDS all|rest MODULE …`: runs a module as `python -m` does, with its wall clock off.

`all`: also the time under which requests are signed; `rest`: all but that. `datetime` itself stays right, for extension
modules hold it as a C struct; nothing in a service but botocore asks it for the time. libcurl signs with the date that
a request names.
"""

import runpy
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


def skew(seconds: float) -> None:
    real_time, real_time_ns = time.time, time.time_ns
    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_time_ns() + round(seconds * 1e9)


def skew_signatures(seconds: float, put: Callable[[object, str, object], None] = setattr) -> None:
    """`put`: sets an attribute, for good or for a while."""
    import botocore.auth

    from rolloutpipe_core.store.wire import Wire

    now, send, off = botocore.auth.get_current_datetime, Wire._send, timedelta(seconds=seconds)

    def send_skewed(wire, operation, key, options, headers):
        return send(
            wire, operation, key, options, {**headers, "X-Amz-Date": f"{datetime.now(UTC) + off:%Y%m%dT%H%M%SZ}"}
        )

    put(botocore.auth, "get_current_datetime", lambda: now() + off)
    put(Wire, "_send", send_skewed)


if __name__ == "__main__":
    _, seconds, what, module, *sys.argv[1:] = sys.argv
    skew(float(seconds))
    if what == "all":
        skew_signatures(float(seconds))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
