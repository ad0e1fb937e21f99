#!/bin/sh
# papers/ccq/figures.sh ATTGEO MODEL FOLDER: the paper's Figures 1 and 5 for any model, each beside its control, at two taps; and what its
# argument stands on and does not show: how good the second-order model of softmax is at the queries the model forms.
#   MODEL: sample (the checkpoint in data/sample), smollm2 (fetched), or a path that attgeo can read
#   PROMPTS=FILE  prompts of your own instead of generated ones   PAIRS=16 LENGTH=512 DISTRACTORS=4  what is generated
#   R=16          directions, as in the paper                     SEED=1     TEMPLATE=none|chatml|llama3     QUERIES=64
# No keys are stored: everything is reduced during the forward pass, once per tap.
set -eu
attgeo=$1 model=$2 folder=$3
seed=${SEED:-1} r=${R:-16}
step() { echo "\$ $*"; "$@"; }

mkdir -p "$folder"
case $model in
sample)
    model=data/sample/softmax
    PROMPTS=${PROMPTS:-data/sample/prompts.jsonl} # its language is small: it cannot read generated prose
    ;;
smollm2) model=$(sh data/fetch.sh build/models) ;;
esac
if [ -n "${PROMPTS:-}" ]; then
    step cp "$PROMPTS" "$folder/prompts.jsonl"
else
    step "$attgeo" prompts --tokenizer "$model" --count "${PAIRS:-16}" --length "${LENGTH:-512}" \
        --distractors "${DISTRACTORS:-4}" --template "${TEMPLATE:-none}" --seed "$seed" --force -o "$folder/prompts.jsonl"
fi
# rope: the keys that the read sees. norm: the stage before it, free of positions (equal to proj where keys are not normalised).
# Softmax sees the keys at rope: there the remainder of its second-order model is measured in the same pass.
step "$attgeo" probe "$model" "$folder/prompts.jsonl" --reduce geometry,taylor --tap rope --r "$r" --queries "${QUERIES:-64}" \
    --seed "$seed" --force -o "$folder/rope"
step "$attgeo" probe "$model" "$folder/prompts.jsonl" --reduce geometry --tap norm --r "$r" --seed "$seed" --force \
    -o "$folder/norm.geometry.h5"
for tap in rope norm; do
    step "$attgeo" plot "$folder/$tap.geometry.h5" --force -o "$folder/$tap"
    step "$attgeo" plot "$folder/$tap.geometry.h5" --figure delta-mu --pooling token --force -o "$folder/$tap/token"
done
step "$attgeo" plot "$folder/rope.taylor.h5" --force -o "$folder/rope/taylor"
"$attgeo" taylor --report "$folder/rope.taylor.h5" --json "$folder/taylor.json" --force > "$folder/taylor.txt"
echo
awk -f papers/ccq/verdicts.awk "$folder"/*/delta-mu.tsv "$folder"/*/token/delta-mu.tsv "$folder"/*/separation.tsv \
    "$folder"/*/spectra.tsv |
    tee "$folder/verdicts.tsv"
cat <<TEXT

Figure 1 (alignment by layer and role): $folder/rope/separation.pdf, $folder/norm/separation.pdf
Figure 5 (Delta-mu by layer and head):  $folder/rope/token/delta-mu.pdf pools all tokens as the paper does;
                                        $folder/rope/delta-mu.pdf pools within prompts and tests each cell. norm: the same.
The numbers above:                      $folder/verdicts.tsv
The second-order model of softmax:      $folder/rope/taylor/taylor-*.pdf; in words and numbers $folder/taylor.txt
In every figure of alignment the haystack control stands on the right; papers/ccq/claims.md says how to read it.
TEXT
