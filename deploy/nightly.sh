#!/bin/sh
# One night: pack the sales, train once a week, forecast, write the page. Run it in a folder of its own that has
# mqcast.toml; docs/operations.md explains it. What a night writes is in nights/<date>; forecast.parquet and page.html are
# replaced only when all is done. If training fails, the last run forecasts, and the script ends with training's exit code.
set -eu
sales=${1:?give the file of sales, and perhaps one of the plan: nightly.sh sales.parquet plan.parquet} plan=${2:-}
night=nights/$(date +%F) week=$(date +%G-W%V) failed=0
mkdir -p "$night" runs panels

step() { # name, then the command: its JSON goes to a file of this name, its log to stderr
    name=$1
    shift
    mqcast "$@" --json >"$night/$name.json"
}

if [ "$(readlink runs/current || true)" != "$week" ]; then
    [ -e "panels/$week/panel.json" ] || step pack-to-fit pack "$sales" "panels/$week" --config mqcast.toml ${plan:+--future "$plan"}
    if step fit fit "panels/$week" "runs/$week" --config mqcast.toml --resume; then
        ln -sfn "$week" runs/current
    else
        failed=$?
    fi
fi
[ -e runs/current ] || exit "$failed"
step pack pack "$sales" panel --like "panels/$(readlink runs/current)" ${plan:+--future "$plan"}
step forecast forecast runs/current panel "$night/forecast.parquet"
set -- page runs/current --panel panel --out "$night/page.html"
[ ! -e forecast.parquet ] || set -- "$@" --previous forecast.parquet
step page "$@"
for file in page.html forecast.parquet; do
    cp "$night/$file" "$file.part"
    mv "$file.part" "$file"
done
exit "$failed"
