# Prints its environment, sorted.
env | sort
