"""What is worked out over a whole batch: runs, masks, denominators, baselines."""
