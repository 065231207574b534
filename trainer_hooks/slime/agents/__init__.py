"""One agent run for one sample: session, launch, reward, log."""
