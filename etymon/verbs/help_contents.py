"""What `--help` shows beside the declarations: examples of every verb, and which options stand together.

Nothing here imports a verb, so `etymon --help` stays quick.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def table(text: str) -> dict[str, str]:
    """What stands behind a name and a colon, by name. Lines that begin with spaces go on with the last one."""
    # Of a hundred entries as Python's own, half would be quotes and commas.
    return dict(line.split(": ", 1) for line in text.strip().replace("\n ", "").splitlines())


VERB_GROUPS = table("""
Begin: demo explain tasks plan
Text and training: tokenizer prepare pretrain finetune distill sweep compare
Use a model: generate fill predict translate summarize embed replaced prompt serve
Measure a model: evaluate score surprisal pairs probe context
Look inside, convert, extend: show attention convert export push new
""")
"""Verbs in the order in which people need them, by heading."""


def _examples(text: str) -> list[tuple[str, str]]:
    """(command, purpose) of lines that are a purpose and a command by turns."""
    return [(command, purpose) for purpose, command in re.findall("# (.*)\n(.*)", text)]


FIRST_EXAMPLES = _examples("""
# see it work, in three minutes
demo
# train on your own text
pretrain gpt2 --data my.txt --budget 10m
# let the model write
generate runs/gpt2-pocket "Once upon a time"
# what a verb can do; every verb has such a page
pretrain --help
""")
"""On the page of `etymon` itself."""

EXAMPLES: dict[str, list[tuple[str, str]]] = {verb: [] for verb in " ".join(VERB_GROUPS.values()).split()}
"""Of every verb: command lines behind `etymon `, and what each is for."""
for _command, _purpose in _examples("""
# three minutes; nothing is downloaded
demo
# a shorter one, in a folder of its own
demo --budget 30s --out runs/first
# one like BERT's, and how well it fits the text
tokenizer --family bert --data my.txt --size 8000 --out words
# does it fit other text?
tokenizer --show words --data other.txt
# add tokens to it
tokenizer --from words --size 12000 --data other.txt --out more-words
# tokens of all files of a folder
prepare --tokenizer words --data books/ --out store
# without copies and very short documents
prepare --tokenizer words --data web.jsonl --deduplicate near --min-length 200 --out store
# what it takes on this machine
plan gpt2 --size small --budget 1h
# eight GPUs: memory, days, price
plan gpt2 --size xl --devices 8xA100-80 --budget 100Gtokens
# ten minutes, in runs/gpt2-pocket
pretrain gpt2 --data my.txt --budget 10m
# a BERT of your own
pretrain bert --data books/ --vocabulary 8000 --budget 2h --out runs/mine
# try everything once, train nothing
pretrain bert --data my.txt --dry-run
# after Ctrl-C: goes on exactly
pretrain gpt2 --out runs/gpt2-pocket --resume
# go on from a model
pretrain bert --from google-bert/bert-base-uncased --data my.txt --budget 8h
# four runs of five minutes
sweep gpt2 --data my.txt --grid learning_rate=1e-3,3e-3 --grid batch=8,16 --budget 5m
# three families, same text, same time
compare gpt2 bert electra --data my.txt --budget 20m
# two maskings, decided by a task
compare bert bert@options.masking=whole-words --data my.txt --tasks reviews.csv --budget 20m
# a student with half the layers
distill runs/bert-pocket --data my.txt --budget 10m
# a classifier
finetune runs/bert-pocket --task classify --train reviews.csv --text review --label verdict
# names in a text
finetune runs/bert-pocket --task tag --train train.conll --budget 10m
# a translator
finetune transformer --from-scratch --train pairs.tsv --source de --target en --budget 1h
# single texts
predict runs/classify-bert "A dull film." "A joy."
# a table, with two more columns
predict runs/classify-bert --data new.csv --out answered.csv
# scores with intervals
evaluate runs/classify-bert --data test.csv
# every part of a suite
evaluate runs/bert-pocket --suite glue
# all families and tasks
tasks
# one family, and how it does each
tasks --family t5
# search with four beams
translate runs/text2text-transformer "Ein Hund." --beams 4
# every line of a file
translate runs/text2text-transformer --file in.txt --out out.txt
# a long text, part by part
summarize runs/text2text-t5 --file article.txt --chunk
# the likeliest token each time
generate runs/gpt2-pocket "Once upon a time"
# drawn at random
generate runs/gpt2-pocket "Once upon" --temperature 0.8 --top-k 40 --seed 1
# choose one of these answers
generate runs/gpt2-pocket "Is it? Answer:" --choice " yes" --choice " no"
# what fits the blank
fill runs/bert-pocket "The [MASK] of the story."
# which tokens do not belong
replaced runs/electra-pocket "The of story."
# which is likelier?
score runs/gpt2-pocket "A list." "List a."
# bits per byte of a file
score runs/gpt2-pocket --file book.txt
# word by word, in bits
surprisal runs/gpt2-pocket "The old man the boat."
# a table for statistics
surprisal runs/gpt2-pocket --file story.txt --out words.csv
# BLiMP, paradigm by paradigm
pairs runs/gpt2-pocket --data blimp/
# two models, two files
pairs runs/gpt2-pocket runs/bert-pocket --data good.txt bad.txt
# no training: examples only
prompt runs/gpt2-pocket sentiment.yaml --shots 0,1,16
# a vector a text
embed runs/bert-pocket "One text." "Another." --out vectors.npy
# every line of a file
embed runs/bert-pocket --file texts.txt --pooling mean --normalise --out vectors.npy
# parts of speech by layer
probe runs/bert-pocket --data en_ewt-ud-dev.conllu --out probes
# who makes use of more text?
context runs/gpt2-pocket runs/transformer-xl-pocket --data test.txt --out context
# attention.html, all layers and heads
attention runs/bert-pocket "The river ran."
# one picture
attention runs/bert-pocket "The river ran." --out map.png --layer 3 --head 1
# masks, segments, which tokens see which
explain bert "The river ran. It was cold."
# a page to step through
explain xlnet "The river ran." --seed 1 --out page.html
# then open the address that is printed
serve runs/gpt2-pocket runs/bert-pocket
# under a name of your own
serve chat=runs/gpt2-pocket --port 9000 --quantize int8
# a Hugging Face folder from a run
convert runs/gpt2-pocket my-model
# weights of eight bits
convert runs/gpt2-pocket small-model --quantize int8
# for ONNX Runtime and browsers
export runs/reviews/model --to onnx --quantize int8
# a program that needs PyTorch alone
export runs/reviews/model --to torch --out reviews-torch
# what every family and head can become
export --list
# every file with its size; nothing is sent
push runs/gpt2-pocket ada/tiny-gpt2 --dry-run
# a private repository, which only you see
push runs/gpt2-pocket ada/tiny-gpt2 --license cc-by-4.0 --private
# fill_in_the_middle.py and its test
new objective fill-in-the-middle
# what a run or a folder holds
show runs/gpt2-pocket
# a published size, without weights
show bert --size base
"""):
    EXAMPLES[_command.split()[0]].append((_command, _purpose))

NEEDED = table("""
push: dry_run private license language datasets revision milestones keep_card message
tokenizer: data size out family kind show from normalise limit
prepare: data tokenizer out validation
plan: size budget devices nodes words price length batch
pretrain: data out size budget steps resume vocabulary tokenizer from objective dry_run
sweep: data grid budget seeds out size resume
compare: data budget tasks task_budget pairs seeds out resume
distill: data out budget steps layers family resume
finetune: task train validation text label out budget epochs resume from_scratch lora mixture
predict: data out bom text
evaluate: data suite metric out
generate: max_new_tokens temperature top_k top_p beams choice stop returns seed
translate: file out beams max_new_tokens
summarize: file out beams max_new_tokens
fill: top_k max_new_tokens
score: file lines target tokens words out
surprisal: file by words out
embed: file out pooling layer normalise
probe: data text label out
prompt: shots set limit out
explain: objective seed length set out tokenizer
serve: port host api_key
show: size
demo: budget steps out size seed
""")
"""Options that nearly everybody needs, which come first; of other verbs, all that no group below has."""

VALUES = table("""
FILE: data train validation file config mixture plugin pairs probes
FOLDER: suite_data
PATH: out tokenizer source_tokenizer
MODEL: from teacher draft beside show
COLUMN: text second context question choices tokens source label tags entities answers target column
  columns good bad paradigm field split
NAME=VALUE: set grid
BUDGET: budget task_budget
SIZE: size cache_memory max_body max_document limit
LENGTH: min_length max_length
CODE: language
NAME: device encoding objective optimiser schedule logger metric task family kind to head heads
  language_model suite
TEXT: score.target
""")
"""What stands for the value of an option on a page of help, by the option's name or `verb.name`; of others
their type says it."""

PAGES = table("""
demo: tutorials/first-model
pretrain: pretraining
finetune: finetuning
distill: distilling
sweep: sweeping
compare: comparing
tokenizer: tokenizers
prepare: data
plan: planning
tasks: tasks
generate: generation
fill: generation
predict: finetuning
translate: finetuning
summarize: finetuning
embed: generation
replaced: objectives
prompt: prompting
serve: serving
evaluate: evaluation
score: evaluation
surprisal: evaluation
pairs: evaluation
probe: probing
context: context
show: checkpoints
attention: attention
explain: explaining
convert: checkpoints
export: exporting
push: sharing
new: extending
""")
"""Of every verb, the page of docs/ that shows how to use it."""

CHINESE_PAGES = table("""
pretraining: pretraining.zh
finetuning: finetuning.zh
comparing: comparing-families.zh
generation: using.zh
serving: using.zh
evaluation: evaluation.zh
""")
"""Of pages that verbs name, those with a Chinese one."""

OPTION_GROUPS = table("""
Columns of the table: text second context question choices tokens source label tags entities answers
  target prefix free_text columns multi_label
Reading text: encoding errors max_replaced documents column format max_document words language
  language_temperature deduplicate similarity min_length max_length normalise
Model and tokenizer: size recipe from tokenizer vocabulary sentinels source_tokenizer source_vocabulary
  replace_tokenizer merge features place tune_body teacher teacher_layers way
Training: objective length batch batch_tokens seed seeds optimiser learning_rate schedule warmup
  weight_decay layer_decay clip ema frozen unfreeze patience adversarial smoothing class_weights symmetric
  language_model r_drop
Validation, checkpoints, curves: hold_out metric baselines validate_every save_every save_at keep logger
  tensorboard
How text is written: max_new_tokens min_new_tokens sample temperature min_p typical_p penalty_alpha
  beams length_penalty length_offset early_stopping no_repeat_ngram repetition_penalty presence_penalty
  frequency_penalty window draft draft_tokens log_probs
Machine and memory: device precision quantize batch_size workers slices recompute shard compile on
Settings, plugins, safety: config set dry_run progress json verify ignore_config_key plugin
  changed_plugins help
""")
"""Options that many verbs have, in the order in which they are looked for; others are a verb's own."""


def value_of(verb: str, option: str, kind: object) -> str | None:
    """What stands for an option's value in the help of a verb; None where its type says enough."""
    if kind in (int, float):
        return "N" if kind is int else "NUMBER"
    names = {name: shown for shown, words in VALUES.items() for name in words.split()}
    plain = option.removesuffix("_")
    return names.get(f"{verb}.{plain}") or names.get(plain)


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
