"""The long-running roles and the one-shot steps of a run; imported as `rolloutpipe_components`."""
