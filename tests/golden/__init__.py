"""Whether two revisions of the library compute the same: `python -m tests.golden REVISION`."""
