"""Reading pages: what a page looks like, how it is read, and how what was read is written down. No engine, no file."""
