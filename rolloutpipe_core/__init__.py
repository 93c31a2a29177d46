"""RolloutPipe: pipelined, on-policy GRPO rounds through Redis and S3."""

__version__ = "0.1.0"
