"""Ready-made run configurations, importable as package data under `rolloutpipe_configs`."""
