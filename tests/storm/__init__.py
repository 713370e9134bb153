"""A whole deployment under load and under fault, and a judge who knows what was promised: `make chaos`."""
