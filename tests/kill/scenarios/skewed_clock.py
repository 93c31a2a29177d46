"""`python skewed_clock.py SECONDS all|rest MODULE …`: runs a module as `python -m` does, with its wall clock off.

`all`: also the time under which botocore signs requests; `rest`: all but that. `datetime` itself stays right, for
extension modules hold it as a C struct; nothing in a service but botocore asks it for the time.
"""

import runpy
import sys
import time
from datetime import timedelta


def skew(seconds: float) -> None:
    real_time, real_time_ns = time.time, time.time_ns
    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_time_ns() + round(seconds * 1e9)


def skew_signatures(seconds: float) -> None:
    import botocore.auth

    now = botocore.auth.get_current_datetime
    botocore.auth.get_current_datetime = lambda: now() + timedelta(seconds=seconds)


if __name__ == "__main__":
    _, seconds, what, module, *sys.argv[1:] = sys.argv
    skew(float(seconds))
    if what == "all":
        skew_signatures(float(seconds))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
