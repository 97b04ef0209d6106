"""What is measured of trained models: sweeps, probes, prompts, context, attention, decoding."""
