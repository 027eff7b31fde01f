#!/bin/bash
# A verb of a third party: what it prints is a section of a recipe.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" defaults

"$ctitan" help >log
grep -q "defaults .*a plugin's section of a recipe (defaults)" log
"$ctitan" defaults --help >log
grep -q '^  -b, --brief  .*Leave out what the options mean.$' log
if "$ctitan" defaults adamw --breif >log 2>&1; then exit 1; fi
grep -q 'no option --breif; did you mean --brief?' log
"$ctitan" defaults adamw >section
grep -q '^beta1 = 0.9$' section
train_to one
cat section >>recipe.ini
train_to two
cmp <(values loss one/metrics.jsonl) <(values loss two/metrics.jsonl)
"$ctitan" defaults tokens | grep '^; path must be set$'
if "$ctitan" defaults nothing >log 2>&1; then exit 1; fi
grep -q 'no plugin named nothing' log
