"""What a trained model knows: frozen representations, and probes of them."""
