"""What is learnt from a teacher: options of the distilling objectives and of `etymon distill`."""

from __future__ import annotations

from etymon.settings import option, settings


@settings
class DistillationSettings:
    """What is learnt from a teacher, beside the ordinary objective: options of the distilling objectives and
    of `etymon distill`."""

    # The weights and the temperature that DistilBERT was trained with (its released training command).
    temperature: float = option(2.0, "temperature at which predictions are compared", gt=0)
    soft: float = option(5.0, "weight of the teacher's predictions in the loss", ge=0)
    hard: float = option(2.0, "weight of the ordinary objective in the loss", ge=0)
    cosine: float = option(1.0, "weight of the cosine between hidden states in the loss", ge=0)
    # Off: attention has to be traced for it, which leaves the fused kernels.
    attention: float = option(0.0, "weight of the last layer's attention in the loss, as in MiniLM", ge=0)


@settings
class EncoderDistillationSettings(DistillationSettings):
    everywhere: bool = option(
        True, "encoders: learn the teacher's predictions at every token, not only at masked ones (yes)"
    )
