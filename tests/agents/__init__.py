"""Real third-party agents, installed from their registries and unchanged, run through the sidecar."""
