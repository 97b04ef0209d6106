"""Rows with named columns: reading them from files and programs, and writing them."""
