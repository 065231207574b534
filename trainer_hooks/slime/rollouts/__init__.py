"""What the rollout functions share: worker, groups, runs, versions, pauses."""
