"""Verifiers that a test's responses steer: `module:function` in the worker processes of test_verifier_pool.py."""

import ctypes
import math
import os
import subprocess
import sys
import time
from pathlib import Path

from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.rewards.score import Score


def obey(prompt: Prompt, response: str) -> Score:
    """Do what the response says; anything else scores 1."""
    command, _, argument = response.partition(" ")
    match command:
        case "hang":
            time.sleep(3600)
        case "spin":
            while True:
                math.factorial(20)
        case "child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
            Path(argument).write_text(str(child.pid))
            time.sleep(3600)
        case "raise":
            raise ValueError(argument)
        case "exit":
            sys.exit(argument)
        case "die":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "memory":
            bytearray(8 * 2**30)
        case "recurse":
            return obey(prompt, response)
        case "value":
            return Score(float(argument))
        case "none":
            return None  # type: ignore[return-value]
        case "text":
            return Score("1")  # type: ignore[arg-type]
        case "print":
            sys.stdout.write(argument * 100_000)
            os.write(1, argument.encode())
        case "read":
            return Score(0.5, repr(sys.stdin.read()))
        case "slow":
            time.sleep(float(argument))
        case "die-once" | "memory-once" if not Path(argument).exists():
            Path(argument).touch()
            return obey(prompt, command.removesuffix("-once"))
        case "modules":
            return Score(1.0, " ".join(sorted({"torch", "transformers"} & set(sys.modules))))
        case "pid":
            return Score(1.0, str(os.getpid()))
        case "prompt":
            return Score(1.0, f"{prompt.id} {prompt.answer} {prompt.text} {prompt.messages} {prompt.metadata}")
    return Score(1.0)


not_a_function = 3
