"""What an objective does to a text, told by following one real loss."""
