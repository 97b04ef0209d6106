"""A server for models: OpenAI's protocol and what these families do beyond it, over continuous batching.

`app.py` has the web application, `scheduler.py` the thread that computes, `decoder.py` the batches of texts
that are being written, `store.py` the models by name.
"""
