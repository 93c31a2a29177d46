"""`rolloutpipe bench stack`: what rolloutpipe costs on top of the engine that samples.

rollout_half.py   the rollout service over an SGLang server beside a bare client of the same server, in turns
pairs.py          what a pair of measurements comes to (pure)
report.py         tables and Markdown
"""
