"""Access control: which clients may submit jobs for which programs, and which workers may run them."""
