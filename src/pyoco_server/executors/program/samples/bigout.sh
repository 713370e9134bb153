# Makes a file of N MiB, 1 if none are given, that no compression makes smaller.
dd if=/dev/urandom of=big.bin bs=1048576 count="${1:-1}" 2>/dev/null
echo "wrote ${1:-1} MiB to big.bin"
