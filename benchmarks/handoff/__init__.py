"""`rolloutpipe bench handoff`: what it costs to bring groups from rollout to the trainer, and what a long ledger costs.

workload.py       groups of 16 x 512 tokens, and a prepared run for them
sender.py         the rollout side, a process of its own: the service's hand-over, and the same bytes alone
bare.py           putting and getting the same bytes alone, by boto3 or by libcurl
receiver.py       the trainer side: the service's intake and batches, and bare reading
handover.py       latency, and throughput beside the bare store's
critical_path.py  what a real run's trainer was kept from, from its timeline
real_run.py       the real run
long_ledger.py    a ledger of many groups made through the real scripts, and what its readers take
report.py         tables and Markdown
"""
