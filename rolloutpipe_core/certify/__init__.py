"""`rolloutpipe certify`: runs a configuration under every schedule and compares what came out.

variants ──one run each──> services ──> evidence (commits, groups) ──> comparison with the first run ──> certificate
"""
