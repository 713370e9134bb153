"""What opens images, and what reads them."""
