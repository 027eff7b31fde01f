#!/bin/bash
# run.sh CTITAN SOURCE PAGE..: runs the commands of pages, as their reader would, in a folder of its own for each page. Fenced blocks count:
#
#     ```sh                    commands; each must succeed
#     ```sh background         the same, not waited for
#     ```sh not run: REASON    left out, as it needs what a test has not
#     ```ini NAME              a file of that name, as ```jsonl NAME
#
# So that it does not take long, `train` ends after a few steps, `generate` after a few tokens, and `compare` trains one pair of runs for
# two steps. A command of `train` with more steps than one before it has more of the few, too, and goes on. Prints TAP.
source "$(dirname "$0")/../lib/test.sh"
program=$(realpath "$1") source=$(realpath "$2")
shift 2
enter
top=$work

# A ctitan for the pages, under which training, generating and comparing are short.
mkdir bin
cat >bin/ctitan <<END
#!/bin/bash
case \$1 in
train)
    given=10
    [[ ! " \$* " =~ " training.steps="([0-9]+)" " ]] || given=\${BASH_REMATCH[1]}
    steps=\$((given < 30 ? 3 + given / 10 : 6))
    ((given == 100000)) || set -- "\$@" --set training.steps=\$steps --set validation.freq=0 --set metrics.log_freq=1 --set metrics.peak_tflops=1
    ;;
compare) [[ \$2 != *.ini ]] || set -- "\$@" --steps 2 --runs 1 ;;
generate) set -- "\$@" --tokens 8 ;;
esac
exec "$program" "\$@"
END
chmod +x bin/ctitan
PATH=$top/bin:$PATH

# take_page PAGE: its files are written here, its commands into `commands`, each in front of what announces it.
take_page() {
    awk '
        function announce(line) { gsub(/\\/, "&&", line); gsub(/"/, "\\\"", line); gsub(/\$/, "\\$", line); gsub(/`/, "\\`", line); return line }
        BEGIN {
            print "set -euo pipefail" >"commands"
            # Background jobs end with the page, stopped ones too.
            print "trap '\''for job in $(jobs -p); do pkill -CONT -P $job; kill -CONT $job; kill $job; done 2>/dev/null; wait'\'' EXIT" >"commands"
        }
        /^```/ && kind { kind = ""; next }
        /^```sh not run: ./ { kind = "left"; next }
        /^```sh background$/ { kind = "background"; next }
        /^```sh$/ { kind = "run"; next }
        /^```(ini|jsonl) ./ { kind = $2; next }
        /^```(text|ini|c)$/ { kind = "left"; next }
        /^```/ { print "a block of an unknown kind: " $0; exit 1 }
        kind == "run" { if (!open) print "echo \"" announce($0) "\" >at" >"commands"; open = /\\$/; print >"commands" }
        kind == "background" { print $0 " >background.log 2>&1 &" >"commands" }
        kind && kind != "run" && kind != "left" && kind != "background" { print >kind }
    ' "$1"
}

try_page() {
    take_page "$1" || return 1
    [[ $(wc -l <commands) -gt 2 ]] || { echo "no command was found"; return 1; }
    timeout $((4 * limit)) bash commands >said 2>&1 || { echo "\"$(cat at)\" failed: $(tail -n 3 said)"; return 1; }
}

for page in "$@"; do
    mkdir "$top/page" && cd "$top/page" || exit 1
    ln -s "$source"/{recipes,docs,core,devices,examples,scripts} .
    mkdir build models && ln -s "$top/bin/ctitan" "$(dirname "$program")/meson-uninstalled" build && cp -r "$source/tests/generate/folder" models/base
    try "$page" try_page "$source/$page"
    cd "$top" && rm -rf page
done
finish
