"""A decode with a state equals reading everything again, at every step, for every family that writes from left to right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from etymon.families import REGISTRY, get_family
from etymon.families.model import Model
from etymon.generation.beam import _best
from etymon.generation.decoding import start_token
from etymon.generation.stepper import Stepper
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from etymon.nn.window import SPARE
from tests.decoders import rows_of
from tests.generation.conftest import remembering
from tests.generation.test_looking_back import looking_back

WRITERS = [name for name in REGISTRY if "state" in get_family(name).capabilities and name != "xlnet"]
"""XLNet reads what it was given in both directions and asks a query for what comes next: tests/families/test_xlnet.py."""
SOURCES = rows_of([7, 1, 4], seed=1)


class Checked:
    """A stepper, and beside it the rows that it should have read."""

    def __init__(self, model: Model) -> None:
        self.model, self.stepper = model, Stepper(model, normalised=True)
        self.start = start_token(model)
        self.sources = [list(row) for row in SOURCES]
        self.rows = [list(row) if self.start is None else [self.start] for row in SOURCES]
        self.prefixes = [len(row) for row in self.rows]
        self.agree(self.stepper.prefill(SOURCES, 6, self.start))

    def again(self, rows: list[list[int]]) -> tuple[Tensor, Batch]:
        batch = Batch.of(rows, prefix=self.prefixes if self.model.reads_prefix else None)
        if self.start is None:
            hidden, _ = self.model.hidden(batch)
        else:
            hidden, _ = self.model.decode(batch, self.model.encode(Batch.of(self.sources)))
        return self.model.heads["vocabulary"].log_probs(hidden, None, Context(batch)), batch  # type: ignore[operator]

    def agree(self, scores: Tensor, some: Tensor | None = None) -> None:
        log_probs, batch = self.again(self.rows)
        wanted = log_probs[batch.layout.last if some is None else some]
        # Scores of ten and more are rounded by a millionth of themselves, which on some processors is more than the rest.
        torch.testing.assert_close(scores, wanted, atol=1e-5, rtol=2e-6)

    def step(self, *tokens: int) -> None:
        self.rows = [[*row, token] for row, token in zip(self.rows, tokens, strict=True)]
        self.agree(self.stepper.step(torch.tensor(tokens)))

    def extend(self, *more: list[int]) -> None:
        self.rows = [row + new for row, new in zip(self.rows, more, strict=True)]
        self.stepper.extend(more)
        layout = self.again(self.rows)[1].layout
        ends = zip(layout.first.tolist(), layout.lengths, more, strict=True)
        places = [first + length - len(new) + at for first, length, new in ends for at in range(len(new))]
        self.agree(self.stepper.scores(None), torch.tensor(places))

    def crop(self, *dropped: int) -> None:
        self.rows = [row[: len(row) - drop] for row, drop in zip(self.rows, dropped, strict=True)]
        self.stepper.state.crop([len(row) for row in self.rows])

    def select(self, *rows: int) -> None:
        self._rows(rows)
        self.stepper.select(torch.tensor(rows))

    def fork(self, copies: int) -> None:
        self._rows([row for row in range(len(self.rows)) for _ in range(copies)])
        self.stepper.fork(copies)

    def _rows(self, rows: list[int] | tuple[int, ...]) -> None:
        self.sources, self.rows = [self.sources[row] for row in rows], [self.rows[row] for row in rows]
        self.prefixes = [self.prefixes[row] for row in rows]


@torch.inference_mode()
def walk(model: Model) -> None:
    checked = Checked(model)
    checked.step(3, 5, 7)
    checked.fork(2)
    checked.step(1, 2, 3, 4, 5, 6)
    checked.select(1, 0, 2, 2, 5, 4)  # beams change places and one is doubled
    checked.step(6, 5, 4, 3, 2, 1)
    checked.select(1, 3, 4)  # rows leave
    checked.extend([4, 9, 2], [8], [1, 1])  # beyond the capacity that was asked for
    checked.crop(2, 0, 1)
    checked.step(2, 2, 2)
    checked.extend([3, 1, 4], [1, 5, 9], [2, 6, 5])
    checked.crop(3, 1, 0)
    checked.extend([7], [7, 7], [7, 7, 7])
    checked.select(2, 0)
    checked.step(9, 8)


@pytest.mark.parametrize("family", WRITERS)
def test_a_state_equals_reading_again(family: str, tiny: Callable[[str], Model]) -> None:
    walk(tiny(family))


@pytest.mark.parametrize(("prefix", "pointer"), [(True, 0), (False, 5), (True, 30)])
@pytest.mark.parametrize("family", ["gpt2", "gpt3"])
def test_and_so_do_prefixes_and_pointers(family: str, prefix: bool, pointer: int) -> None:
    walk(looking_back(family, prefix, pointer))


@torch.inference_mode()
def test_a_pointer_forgets_several_calls() -> None:
    """As many tokens as a draft may run ahead, fed one by one, over and over."""
    checked = Checked(looking_back("gpt2", False, 4))
    checked.select(2)
    for _ in range(3):
        for token in range(SPARE):
            checked.step(token)
        checked.crop(SPARE - 1)
    checked.step(3)
    for token in range(6):
        checked.step(token)
    assert checked.stepper.state.window is not None
    with pytest.raises(ValueError, match="cropped by 16"):
        checked.stepper.state.window.crop([SPARE + 2])


@torch.inference_mode()
def test_what_a_branch_does_is_nobody_else_s_business(tiny: Callable[[str], Model]) -> None:
    checked = Checked(tiny("gpt2"))
    caches = checked.stepper.state.self_caches
    before = [[part.clone() for part in cache.parts] for cache in caches]
    branch = checked.stepper.branch(torch.tensor([2, 0, 0]))
    branch.extend([[1, 2], [3], [4, 5, 6]])
    branch.select(torch.tensor([1]))
    assert branch.state.lengths == (8,)
    for cache, parts in zip(caches, before, strict=True):
        assert all(map(torch.equal, cache.parts, parts))
    checked.step(1, 2, 3)


@torch.inference_mode()
def test_only_rows_that_change_places_are_copied(tiny: Callable[[str], Model]) -> None:
    checked = Checked(tiny("gpt2"))
    cache = checked.stepper.state.self_caches[0]
    memory = cache.parts[0].data_ptr()
    checked.select(0, 2)
    assert cache.parts[0].data_ptr() == memory and cache.parts[0].shape[0] == 2
    checked.step(4, 4)


@torch.inference_mode()
def test_beams_that_change_places_take_turns_with_two_arrays(tiny: Callable[[str], Model]) -> None:
    checked = Checked(tiny("t5"))
    checked.fork(2)
    state = checked.stepper.state
    own, cross = state.self_caches[0], state.cross_caches[0]
    first, fixed = own.parts[0].data_ptr(), cross.parts[0].data_ptr()
    before = cross.parts[0].clone()
    checked.select(1, 0, 3, 3, 5, 4)
    checked.step(1, 2, 3, 4, 5, 6)
    assert own.parts[0].data_ptr() != first
    # All of them still look at the same source: nothing of it is copied.
    assert cross.parts[0].data_ptr() == fixed and torch.equal(cross.parts[0], before)
    branch = checked.stepper.branch(torch.tensor([5, 4, 3, 2, 1, 0]))
    branch.select(torch.tensor([5, 4, 3, 2, 1, 0]))
    checked.select(2, 3, 5, 4)  # a prompt leaves: the others' sources move
    checked.step(7, 8, 9, 1)
    branch.step(torch.tensor([1, 2, 3, 4, 5, 6]))
    checked.step(6, 5, 4, 3)


def test_the_best_are_found_block_by_block() -> None:
    generator = torch.Generator().manual_seed(0)
    for size, width in ((10, 4), (64, 8), (199, 8), (1000, 30), (4096, 3)):
        scores = torch.randn(5, size, generator=generator)
        scores[0, 3:] = float("-inf")
        values, places = _best(scores, width)
        assert torch.equal(values, scores.topk(width).values)
        assert torch.equal(scores.gather(1, places), values)


@torch.inference_mode()
def test_crops_that_cannot_be(tiny: Callable[[str], Model]) -> None:
    checked = Checked(tiny("gpt2"))
    for lengths in ([8, 1, 4], [-1, 0, 0]):
        with pytest.raises(ValueError, match="cannot be cropped"):
            checked.stepper.state.crop(lengths)
    assert checked.stepper.state.lengths == (7, 1, 4)


@torch.inference_mode()
def test_prompts_that_begin_alike_are_read_once(tiny: Callable[[str], Model]) -> None:
    shared = rows_of([34])[0]
    prompts = [[*shared, 4], [*shared, 5, 6, 7], [*shared, 4, 8]]
    model = tiny("gpt2")
    together, apart = Stepper(model, normalised=True), Stepper(model, normalised=True)
    apart.shares_prompts = False
    torch.testing.assert_close(
        together.prefill(prompts, 3, None), apart.prefill(prompts, 3, None), atol=1e-5, rtol=0
    )
    assert len(together.hidden_ND) == 6 and len(apart.hidden_ND) == 108


@torch.inference_mode()
def test_a_prompt_beyond_a_memory_is_the_same_beside_one_that_begins_alike() -> None:
    shared = rows_of([34])[0]
    prompts = [[*shared, *rows_of([20], seed=1)[0]], [*shared, 5, 6]]
    for memory, read in ((16, 90), (64, 22)):
        stepper = Stepper(remembering(memory), normalised=True)
        alone = torch.cat([stepper.prefill([prompt], 3, None) for prompt in prompts])
        torch.testing.assert_close(stepper.prefill(prompts, 3, None), alone, atol=1e-5, rtol=0)
        assert len(stepper.hidden_ND) == read  # with memory enough, the beginning is read once
