"""One training run from its settings to a saved model: text or tables, validation, report, folder."""
