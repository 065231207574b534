"""What survives a sidecar that was stopped, killed, or left without a working disk."""
