"""Result objects: written once, read only through their pointer, deleted after the retention."""
