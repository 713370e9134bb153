# Writes its arguments, one in a line, to result.txt, and prints them.
for argument in "$@"; do
    printf '%s\n' "$argument"
done | tee result.txt
