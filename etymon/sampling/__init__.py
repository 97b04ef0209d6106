"""Which tokens make up the samples of a batch: plans, packing, streams, noise."""
