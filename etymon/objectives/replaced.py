"""Replaced-token detection (ELECTRA, section 2): a small generator fills masked places, and the model says of
every token whether it is the original one.

Generator and model train together and share their embeddings, but no gradient runs from one to the other: the
generator learns by its likelihood. A place that is drawn twice is guessed once and counts twice, as in the
released code (which would put the mean of two different guesses, an id without meaning, there).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch.nn.functional as F

from etymon.objectives.masked import MaskedBatch, MaskedExample, MaskedLM, PackedOptions, Packing, SchemeName
from etymon.objectives.objective import Term, Unit
from etymon.settings import option, settings
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@settings
class DetectionOptions(PackedOptions):
    masking: SchemeName = option("electra", "how tokens are chosen and shown")
    packing: Packing = option("segments", "how the text is cut into samples")
    # Binary losses are far smaller than those over a vocabulary: ELECTRA's λ is 50 (section 3.1).
    weight: float = option(50.0, "of the discriminator's loss, beside the generator's", ge=0)
    temperature: float = option(1.0, "at which the generator's guesses are drawn", gt=0)


class Replaced(MaskedLM):
    name = "replaced"
    heads = frozenset({"replaced"})
    requires = frozenset({"bidirectional", "generator"})
    folder = "discriminator"
    companions = frozenset({"generator"})
    Options = DetectionOptions

    def __init__(self, tokenizer: Tokenizer, length: int, options: DetectionOptions | None = None) -> None:
        super().__init__(tokenizer, length, options)
        self.weight, self.temperature = self.options.weight, self.options.temperature

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> MaskedExample:
        example = super().prepare(split, row, rng)
        # The same number for both draws of a place: one guess.
        distinct, which = np.unique(example.places, return_inverse=True)
        return replace(example, uniforms=rng.random(len(distinct), dtype=np.float32)[which])

    def _counts(self, masked: int, tokens: int, rows: int) -> dict[str, float]:
        return {"generator": masked, "generator_accuracy": masked, "discriminator": tokens}

    def loss(self, unit: Unit, micro: MaskedBatch) -> dict[str, Term]:
        generator, model, at = unit.companions["generator"], unit.model, micro.at
        hidden, _ = generator.hidden(micro.batch)
        head = generator.heads["vocabulary"]
        # Sampled, not learned adversarially: no gradient can run through the draw (section 2).
        generator_loss, guesses = head.loss_and_sample(
            hidden, at, micro.targets, micro.uniforms, self.temperature
        )
        # The places as they were (a scheme may show a random token there), then with the guesses.
        original = micro.batch.ids.index_copy(0, at, micro.targets)
        batch = replace(micro.batch, ids=original.index_copy(0, at, guesses))
        is_replaced = batch.ids != original
        # A prediction for every token, not 15% of them: what makes ELECTRA sample-efficient (section 3.4).
        states, _ = model.hidden(batch)
        logits = model.read("replaced", states, batch)
        loss = F.binary_cross_entropy_with_logits(logits, is_replaced.to(logits.dtype), reduction="sum")
        is_right = (logits > 0) == is_replaced
        terms = {
            "generator": Term(generator_loss),
            "discriminator": Term(loss, self.weight),
            # How many were replaced is only known now: the guess may be the original.
            "accuracy_on_replaced": Term((is_right & is_replaced).sum(), 0.0, is_replaced.sum()),
            "accuracy_on_original": Term((is_right & ~is_replaced).sum(), 0.0, (~is_replaced).sum()),
        }
        if not model.training:
            terms["generator_accuracy"] = Term((head.ranks(hidden, at, micro.targets) == 0).sum(), 0.0)
        return terms
