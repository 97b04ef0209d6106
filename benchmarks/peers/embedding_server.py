"""What many write first: sentence-transformers behind FastAPI, a request at a time in FastAPI's threads."""

from __future__ import annotations

import base64
import sys
from typing import Any

from fastapi import Body, FastAPI


def make_app(folder: str) -> FastAPI:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu")
    app = FastAPI()

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/embeddings")
    def embed(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        vectors = model.encode(texts, normalize_embeddings=True)
        data = [
            {"object": "embedding", "index": number, "embedding": base64.b64encode(vector.tobytes()).decode()}
            for number, vector in enumerate(vectors)
        ]
        return {"object": "list", "data": data}

    return app


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(make_app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
