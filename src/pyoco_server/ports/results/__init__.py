"""Where results lie: written once, reached only by who has the pointer, gone after the retention."""
