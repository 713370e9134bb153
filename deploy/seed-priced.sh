#!/bin/sh
# Makes a key and a budget for the tenant demo, once: run again it changes nothing, and shows no key.
set -eu
umask 077
key=/var/lib/pyoco/demo-key.json
if [ ! -s "$key" ]; then
  pyoco-server-admin api-key create --tenant demo > "$key.new"
  mv "$key.new" "$key"
  echo "The key of the tenant demo, shown this once:"
  cat "$key"
fi
pyoco-server-admin budget credit --tenant demo --usd 10.0000 --ref seed-demo
