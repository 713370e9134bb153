# Prints what must never become markup, keeps its input, and fails until the file that its first argument names is there.
echo '<script>window.pwned = "stdout"</script><img src=x onerror="window.pwned = 1">'
echo '<b>not bold</b>' >&2
cat in.txt > result.txt
[ -e "$1" ] || exit 3
