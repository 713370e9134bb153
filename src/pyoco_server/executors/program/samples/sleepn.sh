# Sleeps for N seconds, 1 if none are given, and says so before and after.
seconds="${1:-1}"
echo "sleeping for $seconds s"
sleep "$seconds"
echo "awake"
