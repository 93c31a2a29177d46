"""`rolloutpipe bench schedules`: what each schedule costs, beside serial and beside the floor of its regime."""
