"""Engine `sglang`: SGLang servers over HTTP, one or many.

    engine.py      a call's K samples: admitted, sent, tried again, told why they failed
    admission.py   who gets the next free slot, and at which server (routing.py: pure)
    fleet.py       all servers of the worker: one version on all of them, and somebody who looks after each
    handoff.py     how a server gets other weights;  terms.py what it must have in common with the others (pure)
    replica.py     one server as the engine sees it
    process.py     a server that we start: its command, its log, its end
    client.py      HTTP;  answers.py its typed answers;  completion.py what becomes of an answer (pure)

Facts about SGLang that the code builds on are in docs/sglang.md, with the version in which they were tried.
"""
