"""Continuous batching: texts of many requests are written side by side, and join and leave at every step.

A prompt is read in a state of its own, together with others that wait and in parts if it is long, so that
nobody who is writing has to wait for more than `CHUNK` tokens. Then its rows join the others'. Rows that end
leave at once. Every row is computed by itself, so that its tokens do not depend on the others (but where two
tokens are nearly equally likely: sums of another order round differently).

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.families.special_tokens import token_ids
from etymon.generation.decoding import check_generates, start_token
from etymon.generation.sequences import Continuations
from etymon.generation.stepper import SHARED, Stepper, sharable
from etymon.server.choosing import Chooser, WrittenRow, score_tokens
from etymon.server.jobs import NewToken, ScoredToken, TextJob, WrittenTexts
from etymon.server.prefixes import Prefixes

# Tokens of prompts that are read between two steps of those who write.
CHUNK = 512
# Tokens of a prompt whose scores of all words are held at a time.
SCORED = 128
# Arrays of caches have a multiple of so many cells, so that rows of similar lengths need no new ones.
ROUND = 64
# Prompts that were read are kept for others in this part of the caches' memory.
KEPT_SHARE = 8


@dataclass
class PromptReading:
    """Prompts that are being read, and how far."""

    jobs: list[TextJob]
    stepper: Stepper
    rests: list[list[int]]
    """What is still to be read of each."""


@dataclass
class RowBatch:
    """Rows that are written side by side, and the last token of each, which is not read yet."""

    stepper: Stepper
    rows: list[WrittenRow] = field(default_factory=list)

    def leave(self, gone: set[int]) -> None:
        """These rows go; the last ones take their places, so that few are copied."""
        # Rows of a cache are arrays of megabytes: nobody moves who need not.
        left = len(self.rows) - len(gone)
        movers = iter([place for place in range(left, len(self.rows)) if place not in gone])
        order = [next(movers) if place in gone else place for place in range(left)]
        self.rows = [self.rows[place] for place in order]
        if left:
            self.stepper.select(torch.tensor(order, device=self.stepper.model.device))


class Decoder:
    """The texts that one model writes. All but `require_room` belongs to the scheduler's thread."""

    def __init__(self, model: Model, most_rows: int, memory: float) -> None:
        """At most `most_rows` texts at a time, with caches of at most `memory` bytes."""
        check_generates(model)
        self.model, self.most_rows, self.memory = model, most_rows, memory
        # None of models that go on from a prompt; of others the prompt is a source.
        self.start = start_token(model, generating=True)
        self.end_ids = token_ids(model, "end", generating=True)
        # Special rules of the model's folder (forced tokens) are a row's own, beside those of its request.
        self.chooser = Chooser(model)
        self.waiting: deque[TextJob] = deque()
        self.reading: PromptReading | None = None
        self.writing: list[RowBatch] = []
        """One batch, but for states that cannot be joined."""
        # Measured and not derived: families keep different things of a token.
        self.cell_bytes = self._measure_cell()
        # A prompt that is read in both directions, or by an encoder, is read at once and as a whole; so is
        # one of a model that looks back only so far, whose first call sees farther than the next ones.
        reach = getattr(model.body, "reach", None)
        self.reads_in_parts = self.start is None and not model.reads_prefix and not reach
        cells = self.memory / KEPT_SHARE / self.cell_bytes if self.cell_bytes else 0.0
        self.prefixes = Prefixes(int(min(cells, 1e9)) if self.reads_in_parts else 0)
        self.prompt_tokens = self.shared_tokens = self.new_tokens = self.steps = 0

    @property
    def rows(self) -> int:
        """Texts that are being written or begun, from any thread."""
        # Looked at once: the scheduler's thread may end it meanwhile.
        reading = self.reading
        begun = 0 if reading is None else sum(job.copies for job in reading.jobs)
        return begun + sum(len(writing.rows) for writing in self.writing)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.reading is not None or self.writing)

    def require_room(self, job: TextJob) -> None:
        """Refuses what would never fit."""
        # Otherwise it would wait for ever, and everybody behind it.
        if job.copies > self.most_rows:
            raise EtymonError(
                f"{job.copies} texts of a prompt are asked for, and at most {self.most_rows} are "
                "written at a time: ask for fewer"
            )
        if job.copies * self._cells([job]) * self.cell_bytes > self.memory:
            cells = int(self.memory / self.cell_bytes / job.copies)
            raise EtymonError(
                f"{len(job.prompt)} tokens of prompt and {job.limit} new ones do not fit into the memory of "
                f"this server, which holds {cells}: shorten the prompt, or ask for fewer new tokens"
            )

    @torch.inference_mode()
    def tick(self) -> None:
        """Reads a part of the prompts that wait, and writes a token of every text."""
        # First of all: whoever has gone costs nothing from here on.
        self._drop_gone()
        if self.reading is None:
            self._begin()
        # Before those who write, so that a first token comes soon; it is at most a chunk that they wait for.
        if self.reading is not None:
            scores_RV = self._read(self.reading)
            if scores_RV is not None:
                self._write_on(self.reading, scores_RV)
                # Only now: whoever counts rows meanwhile finds them, and an error reaches those who wait.
                self.reading = None
        for writing in list(self.writing):
            self._step(writing)
        self.writing = [writing for writing in self.writing if writing.rows]

    def fail(self, error: BaseException) -> None:
        """Everybody who waits is told of an error, and all begins anew."""
        jobs = [*self.waiting, *(self.reading.jobs if self.reading else ())]
        jobs += [row.job for writing in self.writing for row in writing.rows]
        # States may be half written: none of them is used again.
        self.waiting.clear()
        self.reading, self.writing = None, []
        for job in jobs:
            job.fail(error)

    # --- who comes and goes

    def _drop_gone(self) -> None:
        now = time.monotonic()
        self.waiting = deque(job for job in self.waiting if not job.drop_if_over(now))
        reading = self.reading
        if reading is not None:
            staying = [place for place, job in enumerate(reading.jobs) if not job.drop_if_over(now)]
            if not staying:
                self.reading = None
            elif len(staying) < len(reading.jobs):
                reading.jobs = [reading.jobs[place] for place in staying]
                reading.rests = [reading.rests[place] for place in staying]
                reading.stepper.select(torch.tensor(staying, device=self.model.device))
        for writing in self.writing:
            gone = {place for place, row in enumerate(writing.rows) if row.job.drop_if_over(now)}
            if gone:
                writing.leave(gone)
        self.writing = [writing for writing in self.writing if writing.rows]

    def _begin(self) -> None:
        """Begins to read the prompts that come next, as many as may be read at a time."""
        jobs: list[TextJob] = []
        tokens = shared = 0
        prefix = None
        while self.waiting:
            job = self.waiting[0]
            match = None if job.scores_prompt else self.prefixes.find(job.prompt)
            their_prefix, kept = (None, 0) if match is None else match
            # Those who share a prefix are read together; whose prompts are scored, those share none.
            if jobs and (their_prefix is not prefix or job.scores_prompt != jobs[0].scores_prompt):
                break
            # A long prompt is read alone, in parts: rows of one call end together.
            if jobs and tokens + len(job.prompt) - kept > CHUNK:
                break
            # In their order: a short one behind does not overtake one that waits for room.
            if not self._fits([*jobs, job]):
                break
            tokens, shared, prefix = tokens + len(job.prompt) - kept, shared + kept, their_prefix
            jobs.append(self.waiting.popleft())
        if not jobs:
            return
        self.prompt_tokens += tokens + shared
        self.shared_tokens += shared
        stepper = Stepper(self.model, normalised=False)
        # Of an encoder; reading a source sets it.
        stepper.memory = None
        # Before anything is computed for them: an error has to reach those who wait.
        reading = self.reading = PromptReading(jobs, stepper, [job.prompt for job in jobs])
        if self.start is not None or not self.reads_in_parts:
            return
        longest = max(len(job.prompt) for job in jobs)
        if prefix is not None:
            # A copy for each, of which only the common beginning counts.
            stepper.state = prefix.state.select(torch.zeros(len(jobs), dtype=torch.long))
            kept_lengths = [self._shared(prefix.ids, job.prompt) for job in jobs]
            stepper.state.crop(kept_lengths)
            reading.rests = [job.prompt[kept:] for job, kept in zip(jobs, kept_lengths, strict=True)]
            return
        prompts = [job.prompt for job in jobs]
        common = sharable(self.model, prompts) if len(jobs) > 1 else 0
        # Hidden states of a shared beginning are there once, and scores would be wanted of each.
        common = common if common >= SHARED and not jobs[0].scores_prompt else 0
        stepper.state = self.model.start(1 if common else len(jobs), longest)
        if common:
            self.shared_tokens += common * (len(jobs) - 1)
            stepper.extend([prompts[0][:common]])
            stepper.fork(len(jobs))
        reading.rests = [prompt[common:] for prompt in prompts]

    @staticmethod
    def _shared(kept: list[int], prompt: list[int]) -> int:
        pairs = enumerate(zip(kept, prompt[:-1]))
        return next((place for place, (a, b) in pairs if a != b), min(len(kept), len(prompt) - 1))

    def _fits(self, jobs: Sequence[TextJob]) -> bool:
        """Whether there is room for these beside those who write."""
        rows = self.rows + sum(job.copies for job in jobs)
        running = [row.job for writing in self.writing for row in writing.rows]
        cells = self._cells([*running, *jobs])
        return rows <= self.most_rows and rows * cells * self.cell_bytes <= self.memory

    def _cells(self, jobs: Sequence[TextJob]) -> int:
        """Cells that a row of these needs in the caches."""
        longest = max(len(job.prompt) + job.limit for job in jobs)
        # All of it from the start: a text that has begun is never short of memory.
        return -(-longest // ROUND) * ROUND

    def _measure_cell(self) -> float:
        """Bytes of a token in the caches, from a prompt of one token."""
        stepper = Stepper(self.model, normalised=False)
        with torch.inference_mode():
            # It also makes the copies of matrices that a first request would wait for.
            stepper.prefill([[0]], 1, self.start)
        caches = getattr(stepper.state, "self_caches", ())
        parts = [part for cache in caches for part in cache.parts]
        return float(sum(part.shape[1] * part.shape[3] * part.element_size() for part in parts))

    # --- reading

    def _read(self, reading: PromptReading) -> Tensor | None:
        """Reads the next tokens of the prompts; after the last ones, returns the scores of what follows."""
        stepper, jobs = reading.stepper, reading.jobs
        if not self.reads_in_parts:
            prompts = [job.prompt for job in jobs]
            stepper.shares_prompts = False
            scores_RV = stepper.prefill(prompts, 1, self.start)
            self._score_prompts(reading, prompts)
            return scores_RV
        # Several prompts have been chosen so that they fit into one call.
        part = [rest[:CHUNK] if len(jobs) == 1 else rest for rest in reading.rests]
        stepper.extend(part)
        self._score_prompts(reading, part)
        reading.rests = [rest[len(read) :] for rest, read in zip(reading.rests, part, strict=True)]
        if any(reading.rests):
            return None
        for place, job in enumerate(jobs):
            # Copied while it is the prompt alone: later the row holds new tokens, too.
            if self.prefixes.takes(job.prompt):
                rows = torch.tensor([place], device=self.model.device)
                self.prefixes.add(job.prompt, stepper.state.select(rows))
        return stepper.scores(stepper.last)

    def _score_prompts(self, reading: PromptReading, part: Sequence[Sequence[int]]) -> None:
        """The log-probabilities of the tokens behind those that were read just now, where they are wanted."""
        starts = reading.stepper.context.batch.layout.host_starts.tolist()
        for job, rest, read, start in zip(reading.jobs, reading.rests, part, starts, strict=True):
            begin = len(job.prompt) - len(rest)
            if not job.scores_prompt:
                continue
            # Nothing stands before the first token that would predict it.
            if not begin:
                job.prompt_scores.append(ScoredToken(job.prompt[0], None))
            targets = job.prompt[begin + 1 : begin + len(read) + 1]
            for first in range(0, len(targets), SCORED):
                tokens = targets[first : first + SCORED]
                at = torch.arange(start + first, start + first + len(tokens), device=self.model.device)
                job.prompt_scores += score_tokens(reading.stepper.scores(at), tokens, job.top or 0)

    def _write_on(self, reading: PromptReading, scores_RV: Tensor) -> None:
        """The texts of prompts that were read begin, and join the others."""
        rows, sources = [], []
        for place, job in enumerate(reading.jobs):
            texts = Continuations(
                job.settings,
                [job.limit],
                [job.key],
                job.settings.end_ids or self.end_ids,
                self.model.tokenizer,
                None,
            )
            history = job.prompt if self.start is None else [self.start]
            job_rows = [WrittenRow(job, copy, texts, history, self.model) for copy in range(job.copies)]
            # The prompt alone was wanted.
            if not job.limit:
                self._finish(job_rows[0])
                continue
            rows += job_rows
            sources += [place] * job.copies
        if not rows:
            return
        # Several texts of a prompt begin as copies of one row.
        if sources != list(range(len(reading.jobs))):
            order = torch.tensor(sources, device=scores_RV.device)
            reading.stepper.state, scores_RV = reading.stepper.state.select(order), scores_RV[order]
        # Their first tokens come of the prompt's own scores, before they join.
        new = RowBatch(reading.stepper, rows)
        self._append(new, self.chooser.choose(scores_RV, rows))
        if not new.rows:
            return
        # Rows of a batch lie in one array, as wide as the longest of them needs.
        cells = self._cells([row.job for writing in (new, *self.writing) for row in writing.rows])
        beside = [each for each in self.writing if each.stepper.state.can_join(new.stepper.state)]
        count = len(new.rows) + sum(len(each.rows) for each in beside[:1])
        # Twice the rows, within the memory: the next ones to come need no new arrays then.
        room = min(self.most_rows, 2 * count)
        if self.cell_bytes:
            room = min(room, int(self.memory / (cells * self.cell_bytes)))
        room = max(room, count)
        if beside:
            beside[0].stepper.join(new.stepper, room, cells)
            beside[0].rows += new.rows
        else:
            new.stepper.state.make_room(room, cells)
            self.writing.append(new)

    # --- writing

    def _step(self, writing: RowBatch) -> None:
        tokens_R = torch.tensor([row.ids[-1] for row in writing.rows], device=self.model.device)
        scores_RV = writing.stepper.step(tokens_R)
        self.steps += 1
        self._append(writing, self.chooser.choose(scores_RV, writing.rows))

    def _append(self, writing: RowBatch, scores: Sequence[ScoredToken]) -> None:
        """Appends a token to every row; those that end leave."""
        gone = set()
        # Counted before anybody is told of them: a client may be gone at its first token.
        self.new_tokens += len(scores)
        for place, (row, score) in enumerate(zip(writing.rows, scores, strict=True)):
            job = row.job
            if not job.first_token:
                job.first_token = time.monotonic() - job.submitted
            # Kept only where somebody wants them: a text may be long.
            if job.top is not None:
                job.scores[row.copy].append(score)
            goes_on = row.texts.add(row.copy, score.id, score.log_prob or 0.0)
            self._tell(row, score, goes_on)
            if not goes_on:
                gone.add(place)
                self._finish(row)
        if gone:
            writing.leave(gone)

    def _tell(self, row: WrittenRow, score: ScoredToken, goes_on: bool) -> None:
        if row.job.on_token is None or row.stream is None:
            return
        # Bytes wait until they are a character, and a beginning of a stop string until it is none.
        piece = row.stop_filter.feed(row.stream.feed(score.id))
        reason = None
        if not goes_on:
            piece += row.stop_filter.feed(row.stream.finish(whole=True), last=True)
            reason = "stop" if row.texts.finished[row.copy] else "length"
        row.job.on_token(NewToken(row.copy, piece, score, reason))

    def _finish(self, row: WrittenRow) -> None:
        """A text has ended; with the last one of its job, whoever waits is told."""
        job = row.job
        job.unfinished -= 1
        if job.unfinished and job.limit:
            return
        (sequences,) = row.texts.results()
        if not job.future.done():
            job.future.set_result(WrittenTexts(sequences, job.scores, job.prompt_scores, job.first_token))
