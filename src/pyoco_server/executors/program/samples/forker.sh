# Starts N children, 5 if none are given, that sleep for M seconds, 600 if none are given, and waits for them.
count="${1:-5}"
seconds="${2:-600}"
while [ "$count" -gt 0 ]; do
    sleep "$seconds" &
    count=$((count - 1))
done
echo "started"
wait
