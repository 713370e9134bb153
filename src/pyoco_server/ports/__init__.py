"""What we need from the world. One folder per port: `port.py` says it in our words, its adapters lie beside it."""
