"""Measurements of whole runs, imported as `rolloutpipe_benchmarks`: real services on real servers."""
