"""What requests may say, and what answers look like. OpenAI's names where it has some."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from etymon.settings.decoding import HOTTEST
from etymon.text.reading import SURROGATE

# Texts of a request.
MOST_INPUTS = 2048
# Likeliest tokens that are told of every place.
MOST_TOP = 20


def _whole(text: str) -> str:
    # JSON can spell half of a surrogate pair, which is no character.
    if SURROGATE.search(text):
        raise ValueError("the text holds half of a character (a lone surrogate): send whole ones")
    return text


Text = Annotated[str, AfterValidator(_whole)]
TextList = Annotated[list[Text], Field(min_length=1, max_length=MOST_INPUTS)]
TokenId = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
TokenList = Annotated[list[TokenId], Field(min_length=1)]
Input = Text | TextList | TokenList | Annotated[list[TokenList], Field(min_length=1, max_length=MOST_INPUTS)]
"""A text, texts, a text as token ids, or texts as token ids."""


class RequestBody(BaseModel):
    # A field that is misspelled would otherwise be ignored without a word.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: Annotated[Text, Field(max_length=500, description="the name of a model, as /v1/models lists it")]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = Field(False, description="a last event tells the tokens that were used")
    include_obfuscation: bool | None = Field(None, description="not used")


class CompletionRequest(RequestBody):
    """OpenAI's, and beyond it what `etymon generate` knows (`top_k` to `return_token_ids`)."""

    prompt: Input = Field("", description="a text, texts, or token ids; for an encoder-decoder the source")
    max_tokens: int | None = Field(16, ge=0, le=2**31, description="at most so many new tokens")
    temperature: float | None = Field(1.0, ge=0, le=HOTTEST, description="0 is greedy")
    top_p: float | None = Field(1.0, ge=0, le=1, description="draw from the likeliest tokens of this mass")
    n: int | None = Field(1, ge=1, le=128, description="texts of each prompt")
    best_of: int | None = Field(None, ge=1, le=128, description="draw so many, give the n likeliest a token")
    stream: bool | None = Field(False, description="send tokens as they are written (server-sent events)")
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(
        None, ge=0, le=MOST_TOP, description="log-probabilities, and of so many others"
    )
    echo: bool | None = Field(False, description="the prompt before the text, with its log-probabilities")
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = Field(
        None, description="end before any of these strings"
    )
    presence_penalty: float | None = Field(0.0, ge=-2, le=2)
    frequency_penalty: float | None = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="the same seed gives the same texts")
    user: Text | None = Field(None, description="not used")
    # Named to be refused with a reason: clients may send them as null.
    suffix: None = Field(None, description="not supported: ask /fill")
    logit_bias: dict[str, float] | None = Field(None, max_length=0, description="not supported")
    # Beyond OpenAI's: the names are those of `etymon generate`.
    top_k: int = Field(0, ge=0, le=2**31, description="draw from so many likeliest tokens; 0: all")
    min_p: float = Field(0.0, ge=0, le=1)
    typical_p: float = Field(1.0, gt=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=HOTTEST)
    no_repeat_ngram: int = Field(0, ge=0, le=2**31)
    min_tokens: int = Field(0, ge=0, le=2**31, description="at least so many new tokens")
    beams: int = Field(1, ge=1, le=64, description="search with so many beams; neither sampled nor streamed")
    return_token_ids: bool = Field(False, description="the ids of the new tokens, too")

    @model_validator(mode="after")
    # Contradictions that no single field can see.
    def _check(self) -> CompletionRequest:
        if any(not text for text in self.stops):
            raise ValueError("an empty stop string would stop at once: leave it out")
        if self.best_of is not None and self.best_of < (self.n or 1):
            raise ValueError(f"best_of is {self.best_of}, below n, which is {self.n}: raise it")
        if self.best_of is not None and self.best_of > (self.n or 1) and self.stream:
            raise ValueError("the best of several texts is known at the end: leave stream or best_of out")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens is 0: ask for a token, or for the prompt alone (echo)")
        if self.min_tokens > (16 if self.max_tokens is None else self.max_tokens):
            raise ValueError("min_tokens is above max_tokens: lower one or raise the other")
        if self.beams > 1 and (self.echo or self.logprobs is not None or self.best_of is not None):
            raise ValueError("a search with beams gives texts alone: leave echo, logprobs and best_of out")
        if self.beams > 1 and (self.n or 1) > self.beams:
            raise ValueError(f"{self.beams} beams give at most {self.beams} texts: lower n")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class EmbeddingRequest(RequestBody):
    input: Input
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = Field(None, ge=1, le=2**31, description="the width of the model, or left out")
    user: Text | None = Field(None, description="not used")
    pooling: Literal["mean", "cls", "max", "last"] | None = Field(
        None, description="the folder's own, else mean"
    )
    normalise: bool | None = Field(None, description="scale to length 1 (as the folder says, else not)")


class TextsRequest(RequestBody):
    texts: TextList


class FillRequest(TextsRequest):
    """Texts with blanks: [MASK], <mask> or ___."""

    top_k: int = Field(5, ge=1, le=100, description="fillings of a blank")
    max_new_tokens: int | None = Field(
        None, ge=1, le=2**31, description="T5, BART: of all spans, or the text"
    )


class PredictRequest(RequestBody):
    texts: TextList | None = Field(None, description="for tasks that read one text")
    rows: Annotated[list[dict[Text, Any]], Field(min_length=1, max_length=MOST_INPUTS)] | None = Field(
        None, description="rows by column: text, question and context, tokens, choices, ..."
    )
    task: Text | None = Field(None, max_length=100, description="of a model that has learnt several")
    beams: int = Field(1, ge=1, le=64, description="of models that write their answers")

    @model_validator(mode="after")
    def _check(self) -> PredictRequest:
        if (self.texts is None) == (self.rows is None):
            raise ValueError("give either texts or rows")
        return self


class RerankRequest(RequestBody):
    query: Text
    documents: TextList
    top_n: int | None = Field(None, ge=1, le=2**31, description="only the best ones")
    return_documents: bool = False


class RewriteRequest(TextsRequest):
    prefix: Text | None = Field(None, description="put before every text (as in training, or as published)")
    beams: int = Field(4, ge=1, le=64)
    max_new_tokens: int | None = Field(None, ge=1, le=2**31)
    chunk: bool = Field(False, description="read a text that is too long in parts")


class ScoreRequest(TextsRequest):
    targets: TextList | None = Field(None, description="score these given the texts")
    words: Literal["tokens", "jieba"] | None = Field(None, description="surprisal by word, too")


class AttentionRequest(RequestBody):
    text: Text
    target: Text | None = Field(None, description="what is written; for an encoder a second text")
    kind: Literal["cross", "encoder", "decoder", "self"] | None = None
    layer: int | None = Field(None, ge=1, le=10_000, description="from 1; all unless told")
    head: int | None = Field(None, ge=1, le=10_000, description="from 1; all unless told")


class TokenizeRequest(RequestBody):
    text: Text


class TaskRequest(RequestBody):
    task: Text | None = Field(None, max_length=100, description="of a model that has learnt several")


class LensRequest(RequestBody):
    text: Text
    top_k: int = Field(5, ge=1, le=20, description="tokens of every place and layer")


class ExplainRequest(TextsRequest):
    """Each text is a document."""

    objective: Text | None = Field(None, max_length=100, description="what it was pretrained on unless told")
    seed: int = Field(0, ge=0, lt=2**31, description="another one draws other places")
    language: Literal["en", "zh"] = Field("en", description="of the sentence that says what is done")


# --- answers


# They describe what is sent, for /docs and /openapi.json; answers are not checked against them.
class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int | None = None


class ChoiceLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: ChoiceLogprobs | None = None
    token_ids: list[int] | None = None


class CompletionAnswer(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class EmbeddingItem(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingAnswer(BaseModel):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: Usage


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "etymon"
    family: str = ""
    abilities: list[str] = Field([], description="what it can be asked: completions, fill, predict, ...")
    positions: int | None = None
    is_open: bool = Field(False, description="whether it is in memory already")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class FillCandidate(BaseModel):
    text: str
    probability: float
    sentence: str


class FilledText(BaseModel):
    text: str
    blanks: list[list[FillCandidate]]
    filled: str


class FillAnswer(BaseModel):
    model: str
    texts: list[FilledText]


class SuspectToken(BaseModel):
    token: str
    start: int
    stop: int
    probability: float


class InspectedText(BaseModel):
    text: str
    tokens: list[SuspectToken]


class ReplacedAnswer(BaseModel):
    model: str
    texts: list[InspectedText]


class PredictAnswer(BaseModel):
    """`prediction` is a label, labels, tags, entities, an answer, a number or the number of a choice;
    `probabilities` and other keys stand beside it as `etymon predict --json` prints them."""

    model: str
    task: str
    predictions: list[dict[str, Any]]
    notes: list[str]


class RankedDocument(BaseModel):
    index: int
    relevance_score: float
    document: str | None = None


class RerankAnswer(BaseModel):
    model: str
    method: Literal["pairs", "vectors"] = Field(
        description="a head that reads both texts, or cosines of vectors"
    )
    results: list[RankedDocument]


class RewrittenText(BaseModel):
    source: str
    text: str
    parts: int


class RewriteAnswer(BaseModel):
    model: str
    texts: list[RewrittenText]
    notes: list[str]


class ScoredWord(BaseModel):
    word: str
    surprisal: float
    tokens: int


class ScoredText(BaseModel):
    text: str
    kind: Literal["likelihood", "pseudo-likelihood"]
    log_likelihood: float
    tokens: int
    bytes: int
    bits_per_byte: float | None
    perplexity: float | None
    pieces: list[str]
    log_probs: list[float]
    words: list[ScoredWord] | None = None


class ScoreAnswer(BaseModel):
    model: str
    texts: list[ScoredText]


class AttentionWeights(BaseModel):
    kind: str
    queries: list[str]
    keys: list[str]
    layers: list[int]
    heads: list[int]
    weights: list[Any] = Field(description="by layer, head, query and key")


class AttentionAnswer(BaseModel):
    model: str
    maps: list[AttentionWeights]


class TokenizeAnswer(BaseModel):
    model: str
    ids: list[int]
    tokens: list[str]
    starts: list[int]
    stops: list[int]


class TaskAnswer(BaseModel):
    model: str
    task: str
    columns: list[str] = Field(description="what a row of /predict has to have")
    lists: list[str] = Field(description="those of them that are lists of texts: words, choices")


class LensAnswer(BaseModel):
    model: str
    tokens: list[str]
    predicts_next: bool = Field(description="whether guesses are about the next token, or the place itself")
    layers: list[list[list[dict[str, Any]]]] = Field(description="by layer (0: its input) and token")


class ExplainAnswer(BaseModel):
    model: str
    objectives: list[str] = Field(description="those that this model can be asked about")
    explanation: dict[str, Any] = Field(description="as `etymon explain --json` prints it")


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    error: ErrorDetail
