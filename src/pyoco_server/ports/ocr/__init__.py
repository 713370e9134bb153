"""Image files as pages, and the engines that read them."""
