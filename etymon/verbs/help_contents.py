"""What `--help` shows beside the declarations: examples of every verb, and which options stand together.

Nothing here imports a verb, so `etymon --help` stays quick.
"""

from __future__ import annotations

from collections.abc import Iterable

VERB_GROUPS = {
    "Begin": "demo explain tasks plan",
    "Text and training": "tokenizer prepare pretrain finetune distill sweep compare",
    "Use a model": "generate fill predict translate summarize embed replaced prompt serve",
    "Measure a model": "evaluate score surprisal pairs probe context",
    "Look inside, convert, extend": "show attention convert export push new",
}
"""Verbs in the order in which people need them, by heading."""

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "demo": (
        ("demo", "three minutes; nothing is downloaded"),
        ("demo --budget 30s --out runs/first", "a shorter one, in a folder of its own"),
    ),
    "tokenizer": (
        ("tokenizer --family bert --data my.txt --size 8000 --out words", "as BERT's; say how it fits"),
        ("tokenizer --show words --data other.txt", "does it fit other text?"),
        ("tokenizer --from words --size 12000 --data other.txt --out more-words", "add tokens to it"),
    ),
    "prepare": (
        ("prepare --tokenizer words --data books/ --out store", "tokens of all files of a folder"),
        (
            "prepare --tokenizer words --data web.jsonl --deduplicate near --min-length 200 --out store",
            "without copies and very short documents",
        ),
    ),
    "plan": (
        ("plan gpt2 --size small --budget 1h", "on this machine"),
        ("plan gpt2 --size xl --devices 8xA100-80 --budget 100Gtokens", "eight GPUs: memory, days, price"),
    ),
    "pretrain": (
        ("pretrain gpt2 --data my.txt --budget 10m", "ten minutes, in runs/gpt2-pocket"),
        ("pretrain bert --data books/ --vocabulary 8000 --budget 2h --out runs/mine", "a BERT of your own"),
        ("pretrain bert --data my.txt --dry-run", "try everything once, train nothing"),
        ("pretrain gpt2 --out runs/gpt2-pocket --resume", "after Ctrl-C: goes on exactly"),
        (
            "pretrain bert --from google-bert/bert-base-uncased --data my.txt --budget 8h",
            "go on from a model",
        ),
    ),
    "sweep": (
        (
            "sweep gpt2 --data my.txt --grid learning_rate=1e-3,3e-3 --grid batch=8,16 --budget 5m",
            "four runs of five minutes",
        ),
    ),
    "compare": (
        ("compare gpt2 bert electra --data my.txt --budget 20m", "three families, same text, same time"),
        (
            "compare bert bert@options.masking=whole-words --data my.txt --tasks reviews.csv --budget 20m",
            "two maskings, decided by a task",
        ),
    ),
    "distill": (("distill runs/bert-pocket --data my.txt --budget 10m", "a student with half the layers"),),
    "finetune": (
        (
            "finetune runs/bert-pocket --task classify --train reviews.csv --text review --label verdict",
            "a classifier",
        ),
        ("finetune runs/bert-pocket --task tag --train train.conll --budget 10m", "names in a text"),
        (
            "finetune transformer --from-scratch --train pairs.tsv --source de --target en --budget 1h",
            "a translator",
        ),
    ),
    "predict": (
        ('predict runs/classify-bert "A dull film." "A joy."', "single texts"),
        ("predict runs/classify-bert --data new.csv --out answered.csv", "a table, with two more columns"),
    ),
    "evaluate": (
        ("evaluate runs/classify-bert --data test.csv", "scores with intervals"),
        ("evaluate runs/bert-pocket --suite glue", "every part of a suite"),
    ),
    "tasks": (
        ("tasks", "all families and tasks"),
        ("tasks --family t5", "one family, and how it does each"),
    ),
    "translate": (
        ('translate runs/text2text-transformer "Ein Hund." --beams 4', "search with four beams"),
        ("translate runs/text2text-transformer --file in.txt --out out.txt", "a text a line"),
    ),
    "summarize": (("summarize runs/text2text-t5 --file dialogues.txt --out summaries.txt", "a text a line"),),
    "generate": (
        ('generate runs/gpt2-pocket "Once upon a time"', "the likeliest token each time"),
        ('generate runs/gpt2-pocket "Once upon" --temperature 0.8 --top-k 40 --seed 1', "drawn at random"),
        ('generate runs/gpt2-pocket "Is it? Answer:" --choice " yes" --choice " no"', "one of these"),
    ),
    "fill": (('fill runs/bert-pocket "The [MASK] of the story."', "what fits the blank"),),
    "replaced": (('replaced runs/electra-pocket "The of story."', "which tokens do not belong"),),
    "score": (
        ('score runs/gpt2-pocket "A list." "List a."', "which is likelier?"),
        ("score runs/gpt2-pocket --file book.txt", "bits per byte of a file"),
    ),
    "surprisal": (
        ('surprisal runs/gpt2-pocket "The old man the boat."', "word by word, in bits"),
        ("surprisal runs/gpt2-pocket --file story.txt --out words.csv", "a table for statistics"),
    ),
    "pairs": (
        ("pairs runs/gpt2-pocket --data blimp/", "BLiMP, paradigm by paradigm"),
        ("pairs runs/gpt2-pocket runs/bert-pocket --data good.txt bad.txt", "two models, two files"),
    ),
    "prompt": (("prompt runs/gpt2-pocket sentiment.yaml --shots 0,1,16", "no training: examples only"),),
    "embed": (
        ('embed runs/bert-pocket "One text." "Another." --out vectors.npy', "a vector a text"),
        ("embed runs/bert-pocket --file texts.txt --pooling mean --normalise --out vectors.npy", "of a file"),
    ),
    "probe": (
        ("probe runs/bert-pocket --data en_ewt-ud-dev.conllu --out probes", "parts of speech by layer"),
    ),
    "context": (
        (
            "context runs/gpt2-pocket runs/transformer-xl-pocket --data test.txt --out context",
            "who makes use of more text?",
        ),
    ),
    "attention": (
        ('attention runs/bert-pocket "The river ran."', "attention.html, all layers and heads"),
        (
            'attention runs/bert-pocket "The river ran." --out map.png --layer 3 --head 1',
            "one picture",
        ),
    ),
    "explain": (
        ('explain bert "The river ran. It was cold."', "masks, segments, who sees whom"),
        ('explain xlnet "The river ran." --seed 1 --out page.html', "a page to step through"),
    ),
    "serve": (
        ("serve runs/gpt2-pocket runs/bert-pocket", "then open the address that is printed"),
        ("serve chat=runs/gpt2-pocket --port 9000 --quantize int8", "under a name of your own"),
    ),
    "convert": (
        ("convert runs/gpt2-pocket my-model", "a Hugging Face folder from a run"),
        ("convert runs/gpt2-pocket small-model --quantize int8", "weights of eight bits"),
    ),
    "export": (
        ("export runs/reviews/model --to onnx --quantize int8", "for ONNX Runtime and browsers"),
        ("export runs/reviews/model --to torch --out reviews-torch", "a program that needs PyTorch alone"),
        ("export --list", "what every family and head can become"),
    ),
    "push": (
        ("push runs/gpt2-pocket ada/tiny-gpt2 --dry-run", "every file with its size; nothing is sent"),
        ("push runs/gpt2-pocket ada/tiny-gpt2 --license cc-by-4.0 --private", "for yourself, for now"),
    ),
    "new": (("new objective fill-in-the-middle", "fill_in_the_middle.py and its test"),),
    "show": (
        ("show runs/gpt2-pocket", "what a run or a folder holds"),
        ("show bert --size base", "a published size, without weights"),
    ),
}
"""Of every verb: command lines behind `etymon `, and what each is for."""

NEEDED = {
    "push": "dry_run private license language datasets revision milestones keep_card message",
    "tokenizer": "data size out family kind show from normalise limit",
    "prepare": "data tokenizer out validation",
    "plan": "size budget devices nodes words price length batch",
    "pretrain": "data out size budget steps resume vocabulary tokenizer from objective dry_run",
    "sweep": "data grid budget seeds out size resume",
    "compare": "data budget tasks task_budget pairs seeds out resume",
    "distill": "data out budget steps layers family resume",
    "finetune": "task train validation text label out budget epochs resume from_scratch lora mixture",
    "predict": "data out bom text",
    "evaluate": "data suite metric out",
    "generate": "max_new_tokens temperature top_k top_p beams choice stop returns seed",
    "translate": "file out beams max_new_tokens",
    "summarize": "file out beams max_new_tokens",
    "fill": "top_k max_new_tokens",
    "score": "file lines target tokens words out",
    "surprisal": "file by words out",
    "embed": "file out pooling layer normalise",
    "probe": "data text label out",
    "prompt": "shots set limit out",
    "explain": "objective seed length set out tokenizer",
    "serve": "port host api_key",
    "show": "size",
    "demo": "budget steps out size seed",
}
"""Options that nearly everybody needs, which come first; of other verbs, all that no group below has."""

OPTION_GROUPS = {
    "Columns of the table": "text second context question choices tokens source label tags entities answers "
    "target prefix free_text columns multi_label",
    "Reading text": "encoding errors max_replaced documents column format max_document words language "
    "language_temperature deduplicate similarity min_length max_length normalise",
    "Model and tokenizer": "size recipe from tokenizer vocabulary source_tokenizer source_vocabulary "
    "replace_tokenizer merge features place tune_body teacher teacher_layers way",
    "Training": "objective length batch batch_tokens seed seeds optimiser learning_rate schedule warmup "
    "weight_decay layer_decay clip frozen unfreeze patience adversarial smoothing class_weights symmetric "
    "language_model r_drop",
    "Validation, checkpoints, curves": "hold_out metric baselines validate_every save_every save_at keep "
    "logger tensorboard",
    "How text is written": "max_new_tokens min_new_tokens sample temperature min_p typical_p penalty_alpha "
    "beams length_penalty length_offset early_stopping no_repeat_ngram repetition_penalty "
    "presence_penalty frequency_penalty window draft draft_tokens log_probs",
    "Machine and memory": "device precision quantize batch_size workers slices recompute shard compile on",
    "Settings, plugins, safety": "config set dry_run progress json verify ignore_config_key plugin "
    "changed_plugins help",
}
"""Options that many verbs have, in the order in which they are looked for; others are a verb's own."""


def grouped_options(verb: str, names: Iterable[str]) -> dict[str, list[str]]:
    """The names of a verb's options by heading: those that everybody needs, then its own others, then the
    groups that verbs share. A name may end in an underscore, as Python's words do."""
    # A group takes its names out of the rest, so what a verb needs first is not repeated further down.
    plain = {name.removesuffix("_"): name for name in names}
    needed = [plain.pop(name) for name in NEEDED.get(verb, "").split() if name in plain]
    shared = {
        heading: [plain.pop(name) for name in words.split() if name in plain]
        for heading, words in OPTION_GROUPS.items()
    }
    others = list(plain.values())
    first = {"Options": needed, "More options": others} if needed else {"Options": others}
    return {heading: chosen for heading, chosen in (first | shared).items() if chosen}
