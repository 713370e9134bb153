"""What is inside a wheel file, read before anybody may install it."""
