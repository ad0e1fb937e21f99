#!/bin/sh
# data/demo.sh ATTGEO MODEL FOLDER: the main job, from nothing to pictures. MODEL: sample (the checkpoint in data/sample),
# smollm2 (fetched), or a path that attgeo can read. Every step is a command that a user could type; it is printed first.
set -eu
attgeo=$1 model=$2 folder=$3
seed=${SEED:-1}
say() { printf '\n\033[1m%s\033[0m\n' "$*" | sed "$( [ -t 1 ] || echo 's/\x1b\[[0-9;]*m//g')"; }
step() { echo "\$ $*"; "$@"; }

rm -rf "$folder"
mkdir -p "$folder"
case $model in
sample)
    model=data/sample/softmax
    say "1. Prompts: the sample's own 16 twin pairs (its language is small: data/sample)"
    step cp data/sample/prompts.jsonl "$folder/prompts.jsonl"
    ;;
*)
    if [ "$model" = smollm2 ]; then model=$(sh data/fetch.sh build/models); fi
    say "1. Prompts: 12 counterbalanced twin pairs of 512 tokens, one needle against four repeated distractors"
    step "$attgeo" prompts --tokenizer "$model" --count 12 --length 512 --distractors 4 --seed "$seed" -o "$folder/prompts.jsonl"
    ;;
esac
say "2. Probe: one forward pass; keys and queries of every layer into an HDF5 dump"
step "$attgeo" probe "$model" "$folder/prompts.jsonl" --taps proj,rope -o "$folder/dump.h5"
say "3. Geometry: spectra, alignment, Delta-mu on the prompt basis and on its control"
step "$attgeo" geometry "$folder/dump.h5" --seed "$seed" --csv "$folder/tables" -o "$folder/geometry.h5"
say "4. Figures"
step "$attgeo" plot "$folder/geometry.h5" -o "$folder/figures"
say "The pictures are in $folder/figures (PNG, SVG, PDF, with the data and the gnuplot script of each):"
cat <<TEXT
  delta-mu     where the needle's keys lie off the dense directions (blue) or on them (red), layer by head; left with the
               prompt's own covariance, right with the haystack's alone: the control that the premise must survive
  separation   mean top-r alignment of needle, distractors, question and haystack, layer by layer, with 95 % bands
  spectra      how much of the keys' variance the leading directions explain
  rank         effective rank of the keys by layer
TEXT
