"""`rolloutpipe bench stack`: what rolloutpipe costs on top of the engine that samples and the library that trains.

rollout_half.py   the rollout service over an SGLang server beside a bare client of the same server, in turns
trainer_half.py   the Megatron backend beside a bare loop (bare_megatron.py), in turns, in the ranks' own processes
trainer_rank.py   one of these ranks
pairs.py          what a pair of measurements comes to (pure)
report.py         tables and Markdown
"""
