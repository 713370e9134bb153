"""The web, as far as it can be judged without touching it: addresses, URLs, bodies and what can be read in them."""
