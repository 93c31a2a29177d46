"""Several trainer ranks as one consumer.

    Redis, S3 <─── rank 0: the trainer service ───┬── JSON over TCP ──> follower 1 ───> S3
                        │                         └── JSON over TCP ──> follower 2 ───> S3
                        └───────── torch.distributed: gradients, parameters ─────┘

place.py       who is which rank, and where they meet
meeting.py     how followers reach rank 0 and prove that they belong to it
children.py    ranks that rank 0 starts itself
crew.py        rank 0's end: orders, answers, what happens when a rank is lost
follower.py    the other end
messages.py    what they say
verdict.py     one rank's bad read is everyone's
several.py     the trainer that the service drives: every rank does the same
collective.py  torch.distributed
"""
