#!/usr/bin/env bash
# The gate of a pull request: checks the jobs here and on the base commit, and writes the table of their peaks.
#
# XMEM_CONFIG, XMEM_ARGUMENTS, XMEM_BASE: the inputs of action.yml; all may be empty. The exit status is that of
# the check here. What the base commit does is only shown: its jobs may be broken, or not exist yet.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$(mktemp -d "${RUNNER_TEMP:-/tmp}/xmem.XXXXXX")
config=()
[ -n "${XMEM_CONFIG:-}" ] && config=(--config "$XMEM_CONFIG")
read -r -a arguments <<< "${XMEM_ARGUMENTS:-}"

xmem-fast check ${config[@]+"${config[@]}"} ${arguments[@]+"${arguments[@]}"} --json -o "$results/head.json"
status=$?

if [ -n "${XMEM_BASE:-}" ]; then
  git cat-file -e "$XMEM_BASE^{commit}" 2>/dev/null || git fetch --quiet --depth 1 origin "$XMEM_BASE"
  if git worktree add --quiet --detach "$results/base" "$XMEM_BASE"; then
    # Without GITHUB_ACTIONS, findings of the base do not mark lines of the pull request.
    (cd "$results/base" && env -u GITHUB_ACTIONS xmem-fast check ${config[@]+"${config[@]}"} \
      ${arguments[@]+"${arguments[@]}"} --json -o "$results/base.json") > "$results/base.log" 2>&1 ||
      echo "The check of the base commit ended with status $?; its figures are left out where there are none."
    git worktree remove --force "$results/base"
  fi
fi

if [ -f "$results/head.json" ]; then
  python "$here/comment.py" "$results/head.json" "$results/base.json" > "$results/comment.md" &&
    echo "comment-file=$results/comment.md" >> "${GITHUB_OUTPUT:-/dev/null}"
fi
exit "$status"
