"""How one run is run. An executor sees neither a store, nor a queue, nor a door."""
