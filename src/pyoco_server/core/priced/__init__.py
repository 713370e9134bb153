"""What a priced run is: its money, its states, and the only ways to change them."""
