# Records AFTER with COMMAND where one is given, compares BEFORE with AFTER, and writes the answer into the summary of the job.
# The status is that of `lumos compare`.
set -uo pipefail
if [ -n "${COMMAND:-}" ]; then
  "$PYTHON" -m lumos collect -o "$AFTER" -- bash -c "$COMMAND" || exit
fi
answer=$("$PYTHON" -m lumos compare "$BEFORE" "$AFTER" --fail-above "$FAIL_ABOVE" 2>&1)
status=$?
echo "$answer"
{ echo "### Step time"; echo; sed 's/^/    /' <<< "$answer"; } >> "$GITHUB_STEP_SUMMARY"  # indented: shown as it is
exit "$status"
