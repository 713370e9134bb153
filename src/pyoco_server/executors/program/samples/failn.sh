# Says why on standard error, and leaves with exit code N, 1 if none is given.
echo "failing with ${1:-1}" >&2
exit "${1:-1}"
